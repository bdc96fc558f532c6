"""A cluster of brokers whose nodes, engine and network are troubled under load, round after round; see __main__.py."""
