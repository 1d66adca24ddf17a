package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// baseMs is the timestamp of first records: an hour ago, so that neither retention nor the check for the future touches them.
var baseMs = time.Now().Unix()*1000 - 3_600_000

func admin(ctx context.Context, bootstrap, prefix string) error {
	cl, err := client(bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for _, step := range []func(context.Context, *kgo.Client, *kadm.Client, string) error{topics, offsets, groupOffsets} {
		if err := step(ctx, cl, adm, prefix+"-t"); err != nil {
			return err
		}
	}
	fmt.Println("ok")
	return nil
}

func topics(ctx context.Context, _ *kgo.Client, adm *kadm.Client, topic string) error {
	retention := "7654321"
	if _, err := adm.CreateTopic(ctx, 3, 1, map[string]*string{"retention.ms": &retention}, topic); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if _, err := adm.CreateTopic(ctx, 3, 1, nil, topic); !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create twice: %v", err)
	}
	listed, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	d := listed[topic]
	if d.Err != nil || len(d.Partitions) != 3 || d.ID == (kadm.TopicID{}) {
		return fmt.Errorf("listed %+v", d)
	}
	configs, err := adm.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	found := false
	for _, c := range configs[0].Configs {
		found = found || (c.Key == "retention.ms" && c.MaybeValue() == retention)
	}
	if !found {
		return fmt.Errorf("retention.ms is not in %+v", configs)
	}
	if r, err := adm.UpdatePartitions(ctx, 4, topic); err != nil || r.Error() != nil {
		return fmt.Errorf("partitions: %v %v", err, r.Error())
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		listed, err = adm.ListTopics(ctx, topic)
		if err == nil && len(listed[topic].Partitions) == 4 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no fourth partition: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func offsets(ctx context.Context, cl *kgo.Client, adm *kadm.Client, topic string) error {
	for i := 0; i < 30; i++ {
		r := &kgo.Record{Topic: topic, Partition: 1, Timestamp: time.UnixMilli(baseMs + int64(i)*1000), Value: []byte(fmt.Sprint(i))}
		if err := cl.ProduceSync(ctx, r).FirstErr(); err != nil {
			return err
		}
	}
	at := func(got kadm.ListedOffsets, err error) func(string, int64) error {
		return func(what string, want int64) error {
			o, ok := got.Lookup(topic, 1)
			if err != nil || !ok || o.Err != nil || o.Offset != want {
				return fmt.Errorf("%s: wanted %d, got %+v %v", what, want, o, err)
			}
			return nil
		}
	}
	return errors.Join(
		at(adm.ListStartOffsets(ctx, topic))("start", 0),
		at(adm.ListEndOffsets(ctx, topic))("end", 30),
		at(adm.ListMaxTimestampOffsets(ctx, topic))("max timestamp", 29),
		at(adm.ListOffsetsAfterMilli(ctx, baseMs+9_500, topic))("after 9.5 s", 10),
		at(adm.ListOffsetsAfterMilli(ctx, baseMs+10_000_000, topic))("after the last, the end", 30),
		func() error {
			var o kadm.Offsets
			o.Add(kadm.Offset{Topic: topic, Partition: 1, At: 12})
			r, err := adm.DeleteRecords(ctx, o)
			if err != nil || r.Error() != nil || r[topic][1].LowWatermark != 12 {
				return fmt.Errorf("delete records: %v %+v", err, r)
			}
			return at(adm.ListStartOffsets(ctx, topic))("start after deletion", 12)
		}(),
		func() error {
			set := kadm.TopicsSet{}
			set.Add(topic, 1)
			p, err := adm.DescribeProducers(ctx, set)
			if err != nil || len(p[topic].Partitions[1].ActiveProducers) != 1 {
				return fmt.Errorf("producers: %v %+v", err, p)
			}
			return nil
		}(),
	)
}

func groupOffsets(ctx context.Context, _ *kgo.Client, adm *kadm.Client, topic string) error {
	name := topic + "-group"
	var o kadm.Offsets
	o.Add(kadm.Offset{Topic: topic, Partition: 1, At: 20, LeaderEpoch: -1, Metadata: "twenty"})
	if err := adm.CommitAllOffsets(ctx, name, o); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	got, err := adm.FetchOffsets(ctx, name)
	if c, ok := got.Lookup(topic, 1); err != nil || !ok || c.At != 20 || c.Metadata != "twenty" {
		return fmt.Errorf("fetched %+v %v", got, err)
	}
	lags, err := adm.Lag(ctx, name)
	lag := lags[name]
	if err != nil || lag.Error() != nil || lag.State != "Empty" || lag.Lag[topic][1].Lag != 10 {
		return fmt.Errorf("lag %+v %v", lags, err)
	}
	groups, err := adm.ListGroups(ctx)
	if _, ok := groups[name]; err != nil || !ok {
		return fmt.Errorf("listed %+v %v", groups, err)
	}
	if _, err := adm.DeleteGroup(ctx, name); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	groups, err = adm.ListGroups(ctx)
	if _, ok := groups[name]; err != nil || ok {
		return fmt.Errorf("still listed: %+v %v", groups, err)
	}
	return nil
}
