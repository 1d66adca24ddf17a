package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// member is one group member and the partitions that it holds at present.
type member struct {
	cl   *kgo.Client
	mu   sync.Mutex
	held map[int32]bool
	done chan struct{}
}

func join(ctx context.Context, bootstrap, topic, name string) (*member, error) {
	m := &member{held: map[int32]bool{}, done: make(chan struct{})}
	drop := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, p := range lost[topic] {
			delete(m.held, p)
		}
	}
	cl, err := client(bootstrap, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(name),
		kgo.HeartbeatInterval(200*time.Millisecond), kgo.SessionTimeout(10*time.Second),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, p := range got[topic] {
				m.held[p] = true
			}
		}),
		kgo.OnPartitionsRevoked(drop), kgo.OnPartitionsLost(drop))
	if err != nil {
		return nil, err
	}
	m.cl = cl
	go func() {
		defer close(m.done)
		for {
			f := cl.PollFetches(ctx)
			if f.IsClientClosed() || ctx.Err() != nil {
				return
			}
		}
	}()
	return m, nil
}

func (m *member) partitions() map[int32]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[int32]bool{}
	for p := range m.held {
		out[p] = true
	}
	return out
}

func (m *member) leave() {
	m.cl.Close()
	<-m.done
}

func until(ctx context.Context, what string, done func() bool) error {
	for deadline := time.Now().Add(40 * time.Second); !done(); {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("never happened: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func rebalance(ctx context.Context, bootstrap, topic, name string) error {
	one, err := join(ctx, bootstrap, topic, name)
	if err != nil {
		return err
	}
	if err := until(ctx, "one member owns all four partitions", func() bool { return len(one.partitions()) == 4 }); err != nil {
		return err
	}
	two, err := join(ctx, bootstrap, topic, name)
	if err != nil {
		return err
	}
	split := func() bool {
		a, b := one.partitions(), two.partitions()
		for p := range a {
			if b[p] {
				return false
			}
		}
		return len(a) == 2 && len(b) == 2
	}
	if err := until(ctx, "two members own two partitions each", split); err != nil {
		return err
	}
	two.leave()
	if err := until(ctx, "the first member owns everything again", func() bool { return len(one.partitions()) == 4 }); err != nil {
		return err
	}
	one.leave()
	fmt.Println("ok")
	return nil
}
