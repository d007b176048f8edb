// Package clients pins franz-go, whose own tests are compiled and run against the broker.
package clients

import (
	_ "github.com/twmb/franz-go/pkg/kadm"
	_ "github.com/twmb/franz-go/pkg/kgo"
)
