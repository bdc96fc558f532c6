"""The evaluation of the paper that the consumer-ack modes come from, repeated: `python -m perf.paper --help`.

run      plan -> run -> topology, drive_load or drive_perftest -> raw     measures, and keeps every sample
         beside                                                           what a build costs beside the one before
analyse  analysis (on Spark) -> figures                                   tables, figures, one summary
report   report                                                           the summary into docs/paper.md, and its notes
"""
