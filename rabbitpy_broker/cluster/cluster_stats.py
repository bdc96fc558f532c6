"""What /metrics has of a cluster: the engine as this node finds it, logs that it appends to, how far replicas are behind."""

from __future__ import annotations

from rabbitpy_broker.cluster.member import SILENT_S, Member
from rabbitpy_broker.cluster.numbers import BOUNDS_S, LogNumbers
from rabbitpy_broker.cluster.status import VHostStatus, all_nodes, all_vhosts
from rabbitpy_broker.cluster.view import View
from rabbitpy_broker.metrics import ClusterStats, FollowerStats, ReplicationStats


def cluster_stats(member: Member, view: View) -> ClusterStats:
    """One look."""
    numbers, vhosts = member.numbers, all_vhosts(view)
    silent_s = member.silent_s()
    since = member.reachable_since if silent_s < SILENT_S else None
    of_vhosts = [_of_vhost(one, numbers.logs.get(one.name) or LogNumbers(), member.node) for one in vhosts]
    return ClusterStats(
        nodes=len(view.nodes),
        nodes_away=len(set(all_nodes(view)) - set(view.nodes)),
        engine_reachable=int(since is not None),
        engine_reachable_since=since or 0.0,
        engine_silent_seconds=silent_s,
        append_bounds_s=BOUNDS_S,
        replication_sum=_sum(of_vhosts, numbers.whole),
        replication=of_vhosts,
        followers=[
            FollowerStats(vhost.name, one.node, int(one.running), one.lag or 0, one.lag_s or 0.0)
            for vhost in vhosts
            for one in vhost.replicas
            if not one.is_owner
        ],
    )


def _counted(stats: ReplicationStats, numbers: LogNumbers) -> ReplicationStats:
    stats.takeovers = numbers.takeovers
    stats.appends = numbers.appends
    stats.appended_bytes = numbers.appended_bytes
    stats.append_failures = numbers.append_failures
    stats.append_seconds = numbers.append_seconds
    stats.append_buckets = list(numbers.buckets)
    return stats


def _of_vhost(vhost: VHostStatus, numbers: LogNumbers, here: str) -> ReplicationStats:
    running = [one for one in vhost.replicas if one.running]
    stats = ReplicationStats(
        vhost.name,
        owned=int(vhost.owner == here),
        term=vhost.term,
        position=vhost.position,
        held=int(vhost.held),
        ownerless=int(not vhost.owner),
        replicas=len(vhost.replicas),
        replicas_running=len(running),
        lag=max((one.lag or 0 for one in running), default=0),
        lag_seconds=max((one.lag_s or 0.0 for one in running), default=0.0),
    )
    return _counted(stats, numbers)


def _sum(of_vhosts: list[ReplicationStats], whole: LogNumbers) -> ReplicationStats:
    found = ReplicationStats()
    for one in of_vhosts:
        found.owned += one.owned
        found.held += one.held
        found.ownerless += one.ownerless
        found.replicas += one.replicas
        found.replicas_running += one.replicas_running
        found.lag = max(found.lag, one.lag)
        found.lag_seconds = max(found.lag_seconds, one.lag_seconds)
    return _counted(found, whole)
