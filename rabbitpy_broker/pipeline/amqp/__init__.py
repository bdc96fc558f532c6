"""The format `amqp`."""
