package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// visible prints all that a reader with this isolation level sees of a topic.
func visible(ctx context.Context, bootstrap, topic, isolation string) error {
	level, committed := kgo.ReadUncommitted(), isolation == "read_committed"
	if committed {
		level = kgo.ReadCommitted()
	}
	cl, err := client(bootstrap, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(level), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer cl.Close()
	list := kadm.NewClient(cl).ListEndOffsets
	if committed {
		list = kadm.NewClient(cl).ListCommittedOffsets
	}
	listed, err := list(ctx, topic)
	if err != nil {
		return err
	}
	if err := listed.Error(); err != nil {
		return err
	}
	left := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	// With control records kept, the last offset of every partition is seen: no transaction ends in a gap.
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if errs := fetches.Errors(); len(errs) > 0 {
			return fmt.Errorf("ends %v not reached: %w", left, errs[0].Err)
		}
		for _, k := range fetches.Records() {
			if !k.Attrs.IsControl() {
				if err := print(k); err != nil {
					return err
				}
			}
			if k.Offset+1 >= left[k.Partition] {
				delete(left, k.Partition)
			}
		}
	}
	return nil
}

type step struct {
	Do      string   `json:"do"`
	Topic   string   `json:"topic"`
	Records []record `json:"records"`
	Count   int      `json:"count"`
	Seconds int      `json:"seconds"`
}

// transactional is a producer and, in a session, a member of a group. A session sends the offsets itself when it commits.
type transactional struct {
	cl      *kgo.Client
	session *kgo.GroupTransactSession
}

func newTransactional(args []string) (*transactional, error) {
	opts := []kgo.Opt{kgo.SeedBrokers(strings.Split(args[0], ",")...), kgo.TransactionalID(args[1]),
		kgo.TransactionTimeout(time.Duration(number(args[2])) * time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(20 * time.Millisecond),
		// KafkaJS, which reads this too, has no snappy.
		kgo.ProducerBatchCompression(kgo.NoCompression())}
	if len(args) == 3 {
		cl, err := kgo.NewClient(opts...)
		return &transactional{cl: cl}, err
	}
	// Whoever comes back under this name takes the place of a killed process at once.
	session, err := kgo.NewGroupTransactSession(append(opts, kgo.ConsumeTopics(args[3]), kgo.ConsumerGroup(args[4]),
		kgo.InstanceID(args[1]), kgo.HeartbeatInterval(200*time.Millisecond), kgo.SessionTimeout(10*time.Second),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, err
	}
	return &transactional{cl: session.Client(), session: session}, nil
}

func (t *transactional) end(ctx context.Context, commit kgo.TransactionEndTry) error {
	if t.session == nil {
		return t.cl.EndTransaction(ctx, commit)
	}
	committed, err := t.session.End(ctx, commit)
	if err == nil && committed != bool(commit) {
		err = errors.New("the group was rebalanced")
	}
	return err
}

func (t *transactional) take(ctx context.Context, s step) (map[string]any, error) {
	answer := map[string]any{}
	switch s.Do {
	case "init":
		_, _, err := t.cl.ProducerID(ctx)
		return answer, err
	case "begin":
		return answer, t.cl.BeginTransaction()
	case "send":
		var wires []*kgo.Record
		for _, r := range s.Records {
			wires = append(wires, r.wire(s.Topic))
		}
		return answer, t.cl.ProduceSync(ctx, wires...).FirstErr()
	case "poll":
		ctx, cancel := context.WithTimeout(ctx, time.Duration(s.Seconds)*time.Second)
		defer cancel()
		records := []record{}
		fetches := t.session.PollRecords(ctx, s.Count)
		for _, k := range fetches.Records() {
			records = append(records, lineOf(k))
		}
		answer["records"] = records
		if err := fetches.Err0(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
		return answer, nil
	case "offsets":
		return answer, nil
	case "commit":
		return answer, t.end(ctx, kgo.TryCommit)
	case "abort":
		return answer, t.end(ctx, kgo.TryAbort)
	}
	return nil, fmt.Errorf("no such step: %s", s.Do)
}

func steps(ctx context.Context, args []string) error {
	t, err := newTransactional(args)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	for s := (step{Do: "init"}); ; {
		answer, err := t.take(ctx, s)
		if err != nil {
			answer = map[string]any{"error": err.Error(), "code": -1}
			if known := (*kerr.Error)(nil); errors.As(err, &known) {
				answer["code"] = known.Code
			}
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
		if !in.Scan() {
			break
		}
		s = step{}
		if err := json.Unmarshal(in.Bytes(), &s); err != nil {
			return err
		}
	}
	t.cl.Close()
	return in.Err()
}
