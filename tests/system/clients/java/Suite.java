import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * The features, tried with the Java client: java Suite CLIENT ADDRESS [FEATURE ...]
 *
 * <p>For each feature it writes one line of JSON to standard output: `feature`, `ok`, `detail`
 * (what went wrong) and `seconds`.
 */
public final class Suite {
    /** Features at a time: most of them wait most of the time. */
    private static final int WORKER_COUNT = 4;

    /** What one feature does, with a name for topic and group that nobody else uses. */
    interface Feature {
        void run(String name) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        String client = arguments[0];
        Client.address = arguments[1];
        Map<String, Feature> features = new LinkedHashMap<>();
        RecordFeatures.addTo(features);
        GroupFeatures.addTo(features);
        AdminFeatures.addTo(features);
        List<String> names = new ArrayList<>(List.of(arguments).subList(2, arguments.length));
        if (names.isEmpty()) {
            names.addAll(features.keySet());
        }
        ExecutorService pool = Executors.newFixedThreadPool(WORKER_COUNT);
        for (String name : names) {
            String unique = (client + "-" + name).replace('_', '-');
            pool.submit(() -> tryOne(name, features.get(name), unique));
        }
        pool.shutdown();
        pool.awaitTermination(5, TimeUnit.MINUTES);
        Client.ADMIN.get().close();
        System.exit(0);
    }

    private static void tryOne(String name, Feature feature, String unique) {
        long beginNs = System.nanoTime();
        String detail = "";
        try {
            feature.run(unique);
        } catch (Throwable error) {
            StringWriter text = new StringWriter();
            error.printStackTrace(new PrintWriter(text));
            detail = text.toString();
        }
        String line = String.format(
                "{\"feature\": %s, \"ok\": %b, \"detail\": %s, \"seconds\": %.2f}",
                quoted(name), detail.isEmpty(), quoted(detail),
                (System.nanoTime() - beginNs) / 1e9);
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    private static String quoted(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') {
                json.append('\\').append(one);
            } else if (one < ' ' || one > '~') {
                json.append(String.format("\\u%04x", (int) one));
            } else {
                json.append(one);
            }
        }
        return json.append('"').toString();
    }

    private Suite() {}
}
