// Holds connections with heartbeats; idle_clients.py says what the arguments are and what is printed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type held struct {
	name, role string
	connection *amqp.Connection
	lost       atomic.Value
	blocked    atomic.Bool
	moved      atomic.Int64
}

func hold(argument string) *held {
	parts := strings.SplitN(argument, ",", 5)
	one := &held{name: parts[0], role: parts[3]}
	heartbeat, err := strconv.Atoi(parts[2])
	must(err)
	one.connection, err = amqp.DialConfig(parts[4], amqp.Config{Heartbeat: time.Duration(heartbeat) * time.Second, Locale: "en_US"})
	must(err)
	opened := time.Now()
	closed := one.connection.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		if err := <-closed; err != nil {
			one.lost.Store(fmt.Sprintf("lost after %.1f s: %v", time.Since(opened).Seconds(), err))
		}
	}()
	blockings := one.connection.NotifyBlocked(make(chan amqp.Blocking, 10))
	go func() {
		for blocking := range blockings {
			one.blocked.Store(blocking.Active)
		}
	}()
	channel, err := one.connection.Channel()
	must(err)
	publish := func() error {
		one.moved.Add(1)
		return channel.PublishWithContext(context.Background(), "", one.name, false, false, amqp.Publishing{Body: make([]byte, 100)})
	}
	switch one.role {
	case "publisher":
		go func() {
			for publish() == nil {
			}
		}()
	case "consumer":
		_, err := channel.QueueDeclare(one.name, false, true, false, false, amqp.Table{"x-max-length": int32(1000)})
		must(err)
		deliveries, err := channel.Consume(one.name, "", true, false, false, false, nil)
		must(err)
		go func() {
			for range deliveries {
				one.moved.Add(1)
			}
		}()
	case "blocked":
		must(publish())
	}
	return one
}

func (one *held) end() string {
	if lost := one.lost.Load(); lost != nil {
		return lost.(string)
	}
	if one.role == "blocked" {
		if !one.blocked.Load() {
			return "not told that it is blocked"
		}
		return "ok"
	}
	if one.role != "idle" {
		if one.moved.Load() == 0 {
			return "nothing published or consumed"
		}
		return "ok"
	}
	channel, err := one.connection.Channel()
	if err == nil {
		_, err = channel.QueueDeclare("", false, true, true, false, nil)
	}
	if err != nil {
		return fmt.Sprintf("of no use at the end: %v", err)
	}
	return "ok"
}

func idle(arguments []string) {
	var all []*held
	for _, argument := range arguments {
		all = append(all, hold(argument))
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	verdict := map[string]string{}
	for _, one := range all {
		verdict[one.name] = one.end()
	}
	line, err := json.Marshal(verdict)
	must(err)
	fmt.Println(string(line))
}
