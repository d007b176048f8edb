import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools in one process, because each start of Java takes a second.
 *
 * <p>A line of the input is a class and its arguments, divided by tabs. The answer is a line with
 * exit status and size of the output in bytes, and then the output.
 * Each tool has a thread, which stops where the tool would end the process.
 */
public final class Tools {
    private static final InheritableThreadLocal<CompletableFuture<Integer>> ENDED =
            new InheritableThreadLocal<>();

    public static void main(String[] ignored) throws Exception {
        var answers = System.out;
        var output = new ByteArrayOutputStream();
        var captured = new PrintStream(output, true, StandardCharsets.UTF_8);
        System.setOut(captured);
        System.setErr(captured);
        Exit.setExitProcedure((status, message) -> {
            ENDED.get().complete(status);
            while (true) {
                LockSupport.park();
            }
        });
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            output.reset();
            int status = run(line.split("\t"));
            captured.flush();
            answers.println(status + " " + output.size());
            output.writeTo(answers);
            answers.flush();
        }
    }

    private static int run(String[] words) throws Exception {
        var main = Class.forName(words[0]).getMethod("main", String[].class);
        var ended = new CompletableFuture<Integer>();
        var thread = new Thread(() -> {
            ENDED.set(ended);
            try {
                main.invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
                ended.complete(0);
            } catch (ReflectiveOperationException error) {
                ended.completeExceptionally(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return ended.get();
    }
}
