// Command bulk sends a large batch to each of 50 partitions: bulk ADDRESS TOPIC
//
// With the default limits of kgo they share a request of up to 100 MiB. If the broker does not take
// it, kgo tries the same again for ever. It ends with status 0 if all was as it should be.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	limit      = 60 * time.Second
	partitions = 50
	valueBytes = 950_000
	// What a broker with a limit of 32 MiB would refuse.
	expectedBytes = 40 << 20
)

func check(ok bool, what ...any) {
	if !ok {
		fmt.Fprintln(os.Stderr, what...)
		os.Exit(1)
	}
}

// The size of the largest request.
type largest struct{ bytes atomic.Int64 }

func (l *largest) OnBrokerWrite(
	_ kgo.BrokerMetadata, _ int16, written int, _, _ time.Duration, _ error,
) {
	for known := l.bytes.Load(); int64(written) > known; known = l.bytes.Load() {
		l.bytes.CompareAndSwap(known, int64(written))
	}
}

func main() {
	address, topic := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	seen := &largest{}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address),
		kgo.WithHooks(seen),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ManualFlushing(),
	)
	check(err == nil, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(ctx, partitions, 1, nil, topic)
	check(err == nil, err)
	value := make([]byte, valueBytes)
	rand.Read(value)
	for index := int32(0); index < partitions; index++ {
		record := &kgo.Record{Topic: topic, Partition: index, Value: value}
		client.Produce(ctx, record, func(record *kgo.Record, err error) {
			check(err == nil && record.Offset == 0, err, record.Partition, record.Offset)
		})
	}
	err = client.Flush(ctx)
	check(err == nil, err)
	check(seen.bytes.Load() > expectedBytes, "the largest request has", seen.bytes.Load(), "bytes")
}
