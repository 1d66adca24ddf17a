// Command client drives franz-go against a broker: records in and out as JSON lines,
// two group members with a rebalance, and the admin client.
//
//	produce BOOTSTRAP TOPIC CODEC | consume BOOTSTRAP TOPIC COUNT | group BOOTSTRAP TOPIC GROUP COUNT
//	rebalance BOOTSTRAP TOPIC GROUP | admin BOOTSTRAP PREFIX
//	read BOOTSTRAP TOPIC ISOLATION | transactions BOOTSTRAP ID TIMEOUT_MS [TOPIC GROUP]
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	args := os.Args[1:]
	var err error
	switch args[0] {
	case "produce":
		err = produce(ctx, args[1], args[2], args[3])
	case "consume":
		err = consume(ctx, args[1], args[2], number(args[3]))
	case "group":
		err = group(ctx, args[1], args[2], args[3], number(args[4]))
	case "rebalance":
		err = rebalance(ctx, args[1], args[2], args[3])
	case "admin":
		err = admin(ctx, args[1], args[2])
	case "read":
		err = visible(ctx, args[1], args[2], args[3])
	case "transactions":
		// Lives as long as there are steps.
		err = steps(context.Background(), args[1:])
	default:
		err = fmt.Errorf("no such command: %s", args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func client(bootstrap string, opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap)}, opts...)...)
}
