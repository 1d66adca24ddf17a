package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// record is one line of input or output; a nil key or value is a null on the wire.
type record struct {
	Partition int32       `json:"partition"`
	Offset    int64       `json:"offset"`
	Timestamp int64       `json:"timestamp"`
	Key       *string     `json:"key"`
	Value     *string     `json:"value"`
	Headers   [][2]string `json:"headers"`
}

func (r record) wire(topic string) *kgo.Record {
	k := &kgo.Record{Topic: topic, Partition: r.Partition, Timestamp: time.UnixMilli(r.Timestamp),
		Key: bytesOf(r.Key), Value: bytesOf(r.Value)}
	for _, h := range r.Headers {
		k.Headers = append(k.Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
	}
	return k
}

func lineOf(k *kgo.Record) record {
	r := record{Partition: k.Partition, Offset: k.Offset, Timestamp: k.Timestamp.UnixMilli(),
		Key: stringOf(k.Key), Value: stringOf(k.Value), Headers: [][2]string{}}
	for _, h := range k.Headers {
		r.Headers = append(r.Headers, [2]string{h.Key, string(h.Value)})
	}
	return r
}

func bytesOf(s *string) []byte {
	if s == nil {
		return nil
	}
	return []byte(*s)
}

func stringOf(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

func codecOf(name string) kgo.CompressionCodec {
	switch name {
	case "gzip":
		return kgo.GzipCompression()
	case "snappy":
		return kgo.SnappyCompression()
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

func produce(ctx context.Context, bootstrap, topic, codec string) error {
	cl, err := client(bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecOf(codec)), kgo.ProducerLinger(20*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	var sent []*kgo.Record
	var mu sync.Mutex
	var failed error
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		var r record
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			return err
		}
		k := r.wire(topic)
		sent = append(sent, k)
		cl.Produce(ctx, k, func(_ *kgo.Record, err error) {
			if err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	for _, k := range sent {
		fmt.Printf("{\"partition\":%d,\"offset\":%d}\n", k.Partition, k.Offset)
	}
	return in.Err()
}

func print(k *kgo.Record) error {
	line, err := json.Marshal(lineOf(k))
	fmt.Println(string(line))
	return err
}

func read(ctx context.Context, cl *kgo.Client, count int) error {
	for seen := 0; seen < count; {
		fetches := cl.PollRecords(ctx, count-seen)
		if errs := fetches.Errors(); len(errs) > 0 {
			return fmt.Errorf("after %d of %d records: %w", seen, count, errs[0].Err)
		}
		for _, k := range fetches.Records() {
			if err := print(k); err != nil {
				return err
			}
			seen++
		}
	}
	return nil
}

func consume(ctx context.Context, bootstrap, topic string, count int) error {
	cl, err := client(bootstrap, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer cl.Close()
	return read(ctx, cl, count)
}

func group(ctx context.Context, bootstrap, topic, name string, count int) error {
	cl, err := client(bootstrap, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(name), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := read(ctx, cl, count); err != nil {
		return err
	}
	// PollRecords is bounded by what is still wanted, so what is uncommitted is what was printed.
	return cl.CommitUncommittedOffsets(ctx)
}
