// Every page of the UI.
export const EVIL = "<img src=x onerror=window.hacked=1>";
const evil = encodeURIComponent(EVIL);
export const ADDRESSES = {
  overview: "/overview", attention: "/attention", queues: "/queues", queue: "/queues/%2F/orders.eu", messages: "/queues/%2F/orders.eu?tab=messages", unacked: "/queues/%2F/held?tab=messages&state=unacked",
  tail: "/queues/%2F/orders.eu?tab=tail", "evil queue": `/queues/%2F/${evil}`, "evil messages": `/queues/%2F/${evil}?tab=messages`, exchanges: "/exchanges", exchange: "/exchanges/%2F/orders", "evil exchange": `/exchanges/%2F/${evil}`, "default exchange": "/exchanges/%2F/amq.default",
  stream: `/queues/%2F/${encodeURIComponent(`${EVIL} log`)}`, "stream messages": `/queues/%2F/${encodeURIComponent(`${EVIL} log`)}?tab=messages&at=4`, "super stream": `/exchanges/%2F/${encodeURIComponent(`${EVIL} visits`)}`, quorum: "/queues/%2F/returned",
  topology: "/topology", connections: "/connections", channels: "/channels", consumers: "/consumers", vhosts: "/vhosts", vhost: "/vhosts/%2F", "evil vhost": `/vhosts/${evil}`, users: "/users", user: "/users/guest", "evil user": `/users/${evil}`,
  policies: "/policies", "operator policies": "/policies?tab=operator", limits: "/limits", definitions: "/definitions", node: "/node", audit: "/audit", log: "/audit?tab=log", "no such page": "/nowhere", "no such queue": "/queues/%2F/nowhere",
};
