// Command admin sets and describes settings of a topic with kadm: admin ADDRESS TOPIC
//
// It ends with status 0 if all was as it should be.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const limit = 60 * time.Second

func check(ok bool, what ...any) {
	if !ok {
		fmt.Fprintln(os.Stderr, what...)
		os.Exit(1)
	}
}

// What applications and infrastructure tools set.
var settings = map[string]string{
	"retention.ms":      "604800000",
	"retention.bytes":   "1073741824",
	"segment.bytes":     "104857600",
	"max.message.bytes": "1000000",
}

type topic struct {
	ctx    context.Context
	client *kadm.Client
	name   string
}

func (t topic) expect(key, value string, source kmsg.ConfigSource) kadm.Config {
	all, err := t.client.DescribeTopicConfigs(t.ctx, t.name)
	check(err == nil, err)
	found, err := all.On(t.name, nil)
	check(err == nil && found.Err == nil, err, found.Err, found.ErrMessage)
	for _, config := range found.Configs {
		if config.Key == key {
			check(config.MaybeValue() == value, key, config.MaybeValue(), "not", value)
			check(config.Source == source, key, config.Source, "not", source)
			return config
		}
	}
	check(false, "no", key)
	return kadm.Config{}
}

func (t topic) change(expected error, changes ...kadm.AlterConfig) {
	for _, alter := range []func(
		context.Context, []kadm.AlterConfig, ...string,
	) (kadm.AlterConfigsResponses, error){
		t.client.ValidateAlterTopicConfigs, t.client.AlterTopicConfigs,
	} {
		answers, err := alter(t.ctx, changes, t.name)
		check(err == nil, err)
		answer, err := answers.On(t.name, nil)
		check(err == nil, err)
		check(errors.Is(answer.Err, expected), answer.Err, answer.ErrMessage, "not", expected)
	}
}

func set(op kadm.IncrementalOp, key, value string) kadm.AlterConfig {
	return kadm.AlterConfig{Op: op, Name: key, Value: &value}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]))
	check(err == nil, err)
	defer client.Close()
	t := topic{ctx, kadm.NewClient(client), os.Args[2]}

	wanted := map[string]*string{}
	for key, value := range settings {
		wanted[key] = kadm.StringPtr(value)
	}
	created, err := t.client.CreateTopic(ctx, 3, 1, wanted, t.name)
	check(err == nil && created.Err == nil, err, created.ErrMessage)
	own := kmsg.ConfigSourceDynamicTopicConfig
	for key, value := range settings {
		config := t.expect(key, value, own)
		check(len(config.Synonyms) > 1, key, "has no default among", config.Synonyms)
		check(config.Synonyms[0].Source == own, key, config.Synonyms)
	}
	refused, _ := t.client.CreateTopic(ctx, 1, 1,
		map[string]*string{"retention.ms": kadm.StringPtr("soon")}, t.name+"-2")
	check(errors.Is(refused.Err, kerr.InvalidConfig), refused.Err)

	remove := kadm.AlterConfig{Op: kadm.DeleteConfig, Name: "retention.bytes"}
	t.change(nil, set(kadm.SetConfig, "retention.ms", "-1"), remove)
	t.expect("retention.ms", "-1", own)
	t.expect("retention.bytes", "-1", kmsg.ConfigSourceDefaultConfig)
	t.change(kerr.InvalidConfig, set(kadm.AppendConfig, "retention.ms", "1"))
	t.change(kerr.InvalidConfig, set(kadm.SetConfig, "max.message.bytes", "many"))
	t.expect("max.message.bytes", settings["max.message.bytes"], own)

	// Each alone, and back to its default.
	for key, values := range map[string][2]string{
		"retention.ms":      {"3600000", "259200000"},
		"retention.bytes":   {"2000000", "-1"},
		"segment.bytes":     {"52428800", "1073741824"},
		"max.message.bytes": {"2000", "1048588"},
	} {
		t.change(nil, set(kadm.SetConfig, key, values[0]))
		t.expect(key, values[0], own)
		t.change(nil, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: key})
		t.expect(key, values[1], kmsg.ConfigSourceDefaultConfig)
	}

	// Replaces all settings.
	answers, err := t.client.AlterTopicConfigsState(
		ctx, []kadm.AlterConfig{set(kadm.SetConfig, "segment.bytes", "52428800")}, t.name)
	check(err == nil, err)
	answer, err := answers.On(t.name, nil)
	check(err == nil && answer.Err == nil, err, answer.ErrMessage)
	t.expect("segment.bytes", "52428800", own)
	t.expect("retention.ms", "259200000", kmsg.ConfigSourceDefaultConfig)
}
