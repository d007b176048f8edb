// Command gaps reads a topic of tests/support/gap_scene.py: gaps ADDRESS TOPIC
//
// Empty batches close the gaps in its offsets. It ends with status 0 if all was as it should be.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	limit = 60 * time.Second
	end   = 1009
)

func check(ok bool, what ...any) {
	if !ok {
		fmt.Fprintln(os.Stderr, what...)
		os.Exit(1)
	}
}

// A client that reads a partition from an offset on, and takes it for an error if there is none.
func reader(address, topic string, offset int64) *kgo.Client {
	from := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(offset)}}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address),
		kgo.ConsumePartitions(from),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	check(err == nil, err)
	return client
}

func receive(client *kgo.Client, count int) []*kgo.Record {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var records []*kgo.Record
	for len(records) < count {
		fetches := client.PollFetches(ctx)
		check(fetches.Err() == nil, fetches.Err(), len(records), "of", count)
		records = append(records, fetches.Records()...)
	}
	check(len(records) == count, len(records), "records, not", count)
	return records
}

func expect(record *kgo.Record, offset int64, value string) {
	check(record.Offset == offset && string(record.Value) == value, record.Offset, record.Value)
}

func main() {
	address, topic := os.Args[1], os.Args[2]
	client := reader(address, topic, 0)
	defer client.Close()
	found := receive(client, 4)
	for index, offset := range []int64{0, 1, 7, 8} {
		expect(found[index], offset, []string{"a", "b", "c", "d"}[index])
	}
	after := &kgo.Record{Topic: topic, Partition: 0, Value: []byte("after")}
	err := client.ProduceSync(context.Background(), after).FirstErr()
	check(err == nil, err)
	expect(receive(client, 1)[0], end, "after")
	for _, offset := range []int64{9, 500} {
		other := reader(address, topic, offset)
		expect(receive(other, 1)[0], end, "after")
		other.Close()
	}
}
