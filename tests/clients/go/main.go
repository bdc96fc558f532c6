// amqp091-go against the broker named by the first argument, through names that begin with the second. Every case has a
// connection of its own. The last line printed is a JSON object of case -> "ok" or what went wrong; the exit code is 0
// when all are ok. With "idle" as the first argument it is the program in idle.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const caseTimeout = 20 * time.Second

var (
	url     string
	prefix  string
	counter atomic.Int64
)

func newName() string { return fmt.Sprintf("%s-%d", prefix, counter.Add(1)) }

// must ends the case with the error; runCase recovers it.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, format string, values ...any) {
	if !holds {
		panic(fmt.Errorf(format, values...))
	}
}

func checkError(err error, code int, text string) {
	var reply *amqp.Error
	check(errors.As(err, &reply), "expected %d, got %v", code, err)
	check(reply.Code == code && strings.Contains(reply.Reason, text), "expected %d %q, got %d %q", code, text, reply.Code, reply.Reason)
}

func dial() (*amqp.Connection, *amqp.Channel) {
	connection, err := amqp.Dial(url)
	must(err)
	channel, err := connection.Channel()
	must(err)
	return connection, channel
}

func exclusiveQueue(channel *amqp.Channel) string {
	queue, err := channel.QueueDeclare("", false, false, true, false, nil)
	must(err)
	return queue.Name
}

func publish(channel *amqp.Channel, exchange, key string, message amqp.Publishing) {
	must(channel.PublishWithContext(context.Background(), exchange, key, false, false, message))
}

func getWhenThere(channel *amqp.Channel, queue string) amqp.Delivery {
	for {
		message, there, err := channel.Get(queue, false)
		must(err)
		if there {
			return message
		}
	}
}

func publishAndConsume() {
	connection, channel := dial()
	defer connection.Close()
	queue := exclusiveQueue(channel)
	must(channel.Qos(10, 0, false))
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	must(err)
	for i := 0; i < 200; i++ {
		publish(channel, "", queue, amqp.Publishing{Body: []byte(fmt.Sprint(i))})
	}
	for i := 0; i < 200; i++ {
		delivery := <-deliveries
		check(string(delivery.Body) == fmt.Sprint(i), "expected %d, got %s", i, delivery.Body)
		must(delivery.Ack(false))
	}
}

func propertiesRoundTrip() {
	connection, channel := dial()
	defer connection.Close()
	queue := exclusiveQueue(channel)
	sent := amqp.Publishing{
		Headers: amqp.Table{
			"text": "ü", "bool": true, "byte": byte(200), "int8": int8(-8), "int16": int16(-1600), "int32": int32(-320000),
			"int64": int64(-64) << 40, "float32": float32(1.5), "float64": 2.5, "nil": nil, "bytes": []byte{0, 255},
			"time": time.Unix(1700000000, 0), "decimal": amqp.Decimal{Scale: 2, Value: 314},
			"array": []any{int32(1), "two", amqp.Table{"three": int32(3)}}, "table": amqp.Table{"nested": amqp.Table{"deep": true}},
		},
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 7, CorrelationId: "c", ReplyTo: "r",
		Expiration: "60000", MessageId: "m", Timestamp: time.Unix(1700000001, 0), Type: "t", UserId: "guest", AppId: "a",
		Body: []byte("body"),
	}
	publish(channel, "", queue, sent)
	got := getWhenThere(channel, queue)
	for name, value := range sent.Headers {
		if at, isTime := value.(time.Time); isTime {
			check(at.Equal(got.Headers[name].(time.Time)), "header %s: %v", name, got.Headers[name])
			continue
		}
		check(reflect.DeepEqual(got.Headers[name], value), "header %s: sent %T %v, got %T %v", name, value, value, got.Headers[name], got.Headers[name])
	}
	check(len(got.Headers) == len(sent.Headers), "headers: %v", got.Headers)
	check(got.ContentType == sent.ContentType && got.ContentEncoding == sent.ContentEncoding && got.DeliveryMode == sent.DeliveryMode &&
		got.Priority == sent.Priority && got.CorrelationId == sent.CorrelationId && got.ReplyTo == sent.ReplyTo &&
		got.Expiration == sent.Expiration && got.MessageId == sent.MessageId && got.Timestamp.Equal(sent.Timestamp) &&
		got.Type == sent.Type && got.UserId == sent.UserId && got.AppId == sent.AppId && string(got.Body) == "body", "%+v", got)
}

func bodiesOfManySizes() {
	connection, err := amqp.DialConfig(url, amqp.Config{FrameSize: 8192, Heartbeat: 10 * time.Second})
	must(err)
	defer connection.Close()
	channel, err := connection.Channel()
	must(err)
	queue := exclusiveQueue(channel)
	for _, size := range []int{0, 1, 8184, 8185, 100000, 2000000} {
		publish(channel, "", queue, amqp.Publishing{Body: make([]byte, size)})
		got := getWhenThere(channel, queue)
		check(len(got.Body) == size, "expected %d octets, got %d", size, len(got.Body))
		must(got.Ack(false))
	}
}

func quorumQueueCountsDeliveries() {
	connection, channel := dial()
	defer connection.Close()
	must(channel.Confirm(false))
	queue := newName()
	arguments := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum, "x-delivery-limit": int32(2)}
	_, err := channel.QueueDeclare(queue, true, false, false, false, arguments)
	must(err)
	confirmation, err := channel.PublishWithDeferredConfirmWithContext(context.Background(), "", queue, false, false, amqp.Publishing{Body: []byte("x")})
	must(err)
	check(confirmation.Wait(), "not confirmed")
	for count := int64(0); count < 3; count++ {
		message := getWhenThere(channel, queue)
		found, _ := message.Headers["x-delivery-count"].(int64) // 0 when it is not there
		check(found == count, "expected %v, got %v", count, message.Headers)
		must(message.Nack(false, true))
	}
	_, there, err := channel.Get(queue, false)
	must(err)
	check(!there, "still there after three returns")
	_, err = channel.QueueDelete(queue, false, false, false)
	must(err)
}

func streamIsReadFromAnOffset() {
	connection, publisher := dial()
	defer connection.Close()
	must(publisher.Confirm(false))
	queue := newName()
	_, err := publisher.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeStream})
	must(err)
	var last *amqp.DeferredConfirmation
	for i := 0; i < 50; i++ {
		last, err = publisher.PublishWithDeferredConfirmWithContext(context.Background(), "", queue, false, false, amqp.Publishing{Body: []byte(fmt.Sprint(i))})
		must(err)
	}
	check(last.Wait(), "not confirmed")
	for times := 0; times < 2; times++ {
		channel, err := connection.Channel()
		must(err)
		must(channel.Qos(7, 0, false))
		messages, err := channel.Consume(queue, "", false, false, false, false, amqp.Table{"x-stream-offset": int64(20)})
		must(err)
		for offset := int64(20); offset < 50; offset++ {
			message := <-messages
			check(message.Headers["x-stream-offset"] == offset, "expected %d, got %v", offset, message.Headers)
			check(string(message.Body) == fmt.Sprint(offset), "expected %d, got %s", offset, message.Body)
			must(message.Ack(false))
		}
		must(channel.Close())
	}
	_, err = publisher.QueueDelete(queue, false, false, false)
	must(err)
}

func confirms() {
	connection, channel := dial()
	defer connection.Close()
	must(channel.Confirm(false))
	queue := exclusiveQueue(channel)
	var waiting []*amqp.DeferredConfirmation
	for i := 0; i < 500; i++ {
		confirmation, err := channel.PublishWithDeferredConfirmWithContext(context.Background(), "", queue, true, false, amqp.Publishing{Body: []byte("x")})
		must(err)
		waiting = append(waiting, confirmation)
	}
	for i, confirmation := range waiting {
		check(confirmation.Wait(), "publish %d was nacked", i+1)
	}
	state, err := channel.QueueDeclarePassive(queue, false, false, true, false, nil)
	must(err)
	check(state.Messages == 500, "%d messages", state.Messages)
	purged, err := channel.QueuePurge(queue, false)
	must(err)
	check(purged == 500, "%d purged", purged)
}

func mandatoryIsReturned() {
	connection, channel := dial()
	defer connection.Close()
	must(channel.Confirm(false))
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	key := newName()
	confirmation, err := channel.PublishWithDeferredConfirmWithContext(context.Background(), "", key, true, false, amqp.Publishing{Body: []byte("lost")})
	must(err)
	check(confirmation.Wait(), "an unroutable message is confirmed")
	select {
	case returned := <-returns:
		check(returned.ReplyCode == 312 && returned.RoutingKey == key && string(returned.Body) == "lost", "%+v", returned)
	default:
		check(false, "the return comes before the confirm")
	}
}

func immediateIsRefused() {
	connection, channel := dial()
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	must(channel.PublishWithContext(context.Background(), "", newName(), false, true, amqp.Publishing{}))
	checkError(<-closed, 540, "NOT_IMPLEMENTED - immediate=true")
}

func nackAndReject() {
	connection, channel := dial()
	defer connection.Close()
	queue := exclusiveQueue(channel)
	publish(channel, "", queue, amqp.Publishing{Body: []byte("x")})
	first := getWhenThere(channel, queue)
	check(!first.Redelivered, "not redelivered at first")
	must(first.Nack(false, true))
	second := getWhenThere(channel, queue)
	check(second.Redelivered, "redelivered after the nack")
	must(second.Reject(false))
	_, there, err := channel.Get(queue, true)
	must(err)
	check(!there, "gone after the reject")
}

func transaction() {
	connection, channel := dial()
	defer connection.Close()
	queue := exclusiveQueue(channel)
	must(channel.Tx())
	publish(channel, "", queue, amqp.Publishing{Body: []byte("undone")})
	must(channel.TxRollback())
	publish(channel, "", queue, amqp.Publishing{Body: []byte("done")})
	must(channel.TxCommit())
	check(string(getWhenThere(channel, queue).Body) == "done", "only what was committed arrives")
}

func rpc() {
	serving, server := dial()
	defer serving.Close()
	calling, client := dial()
	defer calling.Close()
	queue, err := server.QueueDeclare("", false, true, false, false, nil)
	must(err)
	requests, err := server.Consume(queue.Name, "", true, false, false, false, nil)
	must(err)
	go func() {
		for request := range requests {
			_ = server.PublishWithContext(context.Background(), "", request.ReplyTo, false, false,
				amqp.Publishing{CorrelationId: request.CorrelationId, Body: append([]byte("re: "), request.Body...)})
		}
	}()
	answers, err := client.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	must(err)
	for i := 0; i < 20; i++ {
		publish(client, "", queue.Name, amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to", CorrelationId: fmt.Sprint(i), Body: []byte("q")})
	}
	for i := 0; i < 20; i++ {
		answer := <-answers
		check(answer.CorrelationId == fmt.Sprint(i) && string(answer.Body) == "re: q", "answer %d: %+v", i, answer)
	}
}

func exchangesAndBindings() {
	connection, channel := dial()
	defer connection.Close()
	source, destination := newName(), newName()
	must(channel.ExchangeDeclare(source, "topic", false, false, false, false, nil))
	must(channel.ExchangeDeclare(destination, "fanout", false, false, true, false, nil))
	must(channel.ExchangeDeclarePassive(source, "topic", false, false, false, false, nil))
	queue := exclusiveQueue(channel)
	must(channel.ExchangeBind(destination, "a.*.c", source, false, nil))
	must(channel.QueueBind(queue, "", destination, false, nil))
	publish(channel, source, "a.b.c", amqp.Publishing{Body: []byte("yes")})
	publish(channel, source, "a.b", amqp.Publishing{Body: []byte("no")})
	check(string(getWhenThere(channel, queue).Body) == "yes", "routed by the pattern")
	_, there, err := channel.Get(queue, true)
	must(err)
	check(!there, "nothing else is routed")
	must(channel.QueueUnbind(queue, "", destination, nil))
	must(channel.ExchangeUnbind(destination, "a.*.c", source, false, nil))
	must(channel.ExchangeDelete(source, true, false))
	must(channel.ExchangeDelete(destination, true, false))
}

func consumerCancelledByTheBroker() {
	connection, consuming := dial()
	defer connection.Close()
	deleting, err := connection.Channel()
	must(err)
	queue := exclusiveQueue(consuming)
	cancelled := consuming.NotifyCancel(make(chan string, 1))
	deliveries, err := consuming.Consume(queue, "mine", false, false, false, false, nil)
	must(err)
	_, err = deleting.QueueDelete(queue, false, false, false)
	must(err)
	tag := <-cancelled
	check(tag == "mine", "cancelled %q", tag)
	_, open := <-deliveries
	check(!open, "the deliveries end")
}

func cancelledByTheClient() {
	connection, channel := dial()
	defer connection.Close()
	deliveries, err := channel.Consume(exclusiveQueue(channel), "mine", false, true, false, false, nil)
	must(err)
	must(channel.Cancel("mine", false))
	_, open := <-deliveries
	check(!open, "the deliveries end")
}

func channelErrors() {
	connection, channel := dial()
	defer connection.Close()
	name := newName()
	_, err := channel.QueueDeclarePassive(name, false, false, false, false, nil)
	checkError(err, 404, fmt.Sprintf("NOT_FOUND - no queue '%s' in vhost '/'", name))

	channel, err = connection.Channel()
	must(err)
	queue := newName()
	_, err = channel.QueueDeclare(queue, false, false, true, false, nil)
	must(err)
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	must(channel.Ack(82, false))
	checkError(<-closed, 406, "unknown delivery tag 82")

	channel, err = connection.Channel()
	must(err)
	_, err = channel.QueueDeclare(queue, false, true, true, false, nil)
	checkError(err, 406, "inequivalent arg 'auto_delete'")

	channel, err = connection.Channel()
	must(err)
	closed = channel.NotifyClose(make(chan *amqp.Error, 1))
	publish(channel, name, "key", amqp.Publishing{})
	checkError(<-closed, 404, fmt.Sprintf("no exchange '%s' in vhost '/'", name))
}

func refusedLogins() {
	_, err := amqp.Dial(strings.Replace(url, "guest:guest", "guest:wrong", 1))
	check(errors.Is(err, amqp.ErrCredentials) || strings.Contains(fmt.Sprint(err), "403"), "wrong password: %v", err)
	_, err = amqp.DialConfig(url, amqp.Config{Vhost: "nowhere"})
	check(err != nil, "an unknown vhost is refused")
}

func connectionSettings() {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(newName())
	connection, err := amqp.DialConfig(url, amqp.Config{Heartbeat: time.Second, ChannelMax: 8, Properties: properties})
	must(err)
	defer connection.Close()
	check(connection.Config.ChannelMax == 8, "channel_max %d", connection.Config.ChannelMax)
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	// the client fails a connection on which nothing came for three intervals
	select {
	case reason := <-closed:
		check(false, "closed while idle: %v", reason)
	case <-time.After(4 * time.Second):
	}
	must(connection.UpdateSecret("renewed", "as before a token expires"))
	for i := 0; i < 8; i++ {
		_, err := connection.Channel()
		must(err)
	}
	_, err = connection.Channel()
	check(errors.Is(err, amqp.ErrChannelMax), "channel 9 of 8: %v", err)
}

func runCase(work func()) (outcome string) {
	done := make(chan string, 1)
	go func() {
		defer func() {
			if failure := recover(); failure != nil {
				done <- fmt.Sprint(failure)
				return
			}
			done <- "ok"
		}()
		work()
	}()
	select {
	case outcome = <-done:
	case <-time.After(caseTimeout):
		outcome = fmt.Sprintf("not done within %v", caseTimeout)
	}
	return outcome
}

func main() {
	if os.Args[1] == "idle" {
		idle(os.Args[2:])
		return
	}
	url, prefix = os.Args[1], os.Args[2]
	cases := map[string]func(){
		"publish and consume":              publishAndConsume,
		"properties round trip":            propertiesRoundTrip,
		"bodies of many sizes":             bodiesOfManySizes,
		"confirms":                         confirms,
		"quorum queue counts deliveries":   quorumQueueCountsDeliveries,
		"stream is read from an offset":    streamIsReadFromAnOffset,
		"mandatory is returned":            mandatoryIsReturned,
		"immediate is refused":             immediateIsRefused,
		"nack and reject":                  nackAndReject,
		"transaction":                      transaction,
		"rpc over direct reply-to":         rpc,
		"exchanges and bindings":           exchangesAndBindings,
		"consumer cancelled by the broker": consumerCancelledByTheBroker,
		"consumer cancelled by the client": cancelledByTheClient,
		"channel errors":                   channelErrors,
		"refused logins":                   refusedLogins,
		"connection settings":              connectionSettings,
	}
	verdict := make(map[string]string, len(cases))
	exitCode := 0
	for name, work := range cases {
		verdict[name] = runCase(work)
		if verdict[name] != "ok" {
			exitCode = 1
		}
	}
	line, err := json.Marshal(verdict)
	must(err)
	fmt.Println(string(line))
	os.Exit(exitCode)
}
