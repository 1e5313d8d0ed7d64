package load

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
)

// Command is the generator as a program: args hold the targets as JSON, as [Args] makes them, and the lines go to out.
// It ends when its time is over or ctx ends, with an error only when it could not do its work.
func Command(ctx context.Context, args []string, out, messages io.Writer) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.SetOutput(messages)
	var config Config
	flags.DurationVar(&config.Duration, "duration", 0, "how long to send")
	flags.DurationVar(&config.Timeout, "timeout", DefaultTimeout, "how long after its moment a request has to be answered")
	flags.IntVar(&config.InFlight, "in-flight", DefaultInFlight, "how many requests may wait for an answer")
	flags.IntVar(&config.Limit, "limit", DefaultLimit, "how many requests to send at most")
	flags.Func("target", `a target: {"name":"web","address":"10.0.0.1:80","rate":200,"kept":50}; may be repeated`, func(s string) error {
		var t Target
		if err := json.Unmarshal([]byte(s), &t); err != nil {
			return err
		}
		config.Targets = append(config.Targets, t)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	_, err := Run(ctx, config, out)
	return err
}

// Args are the arguments with which [Command] sends the load of a Config.
func Args(config Config) ([]string, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	args := []string{
		"--duration=" + config.Duration.String(), "--timeout=" + config.Timeout.String(),
		fmt.Sprintf("--in-flight=%d", config.InFlight), fmt.Sprintf("--limit=%d", config.Limit),
	}
	for _, t := range config.Targets {
		b, err := json.Marshal(t)
		if err != nil {
			return nil, err
		}
		args = append(args, "--target="+string(b))
	}
	return args, nil
}
