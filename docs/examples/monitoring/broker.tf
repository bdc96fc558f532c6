# Terraform: the provider for RabbitMQ, cyrilgdn/rabbitmq.
terraform {
  required_providers {
    rabbitmq = { source = "cyrilgdn/rabbitmq" }
  }
}

provider "rabbitmq" {
  endpoint = "http://broker.example:15672"
  username = "admin"
  password = var.password
}

variable "password" { sensitive = true }

resource "rabbitmq_vhost" "shop" {
  name = "shop"
}

resource "rabbitmq_queue" "orders" {
  vhost = rabbitmq_vhost.shop.name
  name  = "orders"
  settings {
    durable   = true
    arguments = { "x-dead-letter-exchange" = "dead" }
  }
}

resource "rabbitmq_policy" "limits" {
  vhost = rabbitmq_vhost.shop.name
  name  = "limits"
  policy {
    pattern    = ".*"
    priority   = 0
    apply_to   = "queues"
    definition = { "max-length" = 1000000 }
  }
}
