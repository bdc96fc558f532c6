"""The analysis of measurements of brokers, made by perf.paper: samples in, tables, figures and a summary out."""
