"""One emulated end of a connection: a device, its queue pair, completion queues and memory.

    pair = Pair(mtu=256)
    pair.b.post_recv(4096)
    pair.a.post_send(WROpcode.SEND, 1000)
    pair.run()
    assert [wc.status for wc in pair.a.poll_send_cq()] == [WCStatus.SUCCESS]

`End` is one end, `Pair` two of them with a wire, `Peer` one that the caller exchanges packets
with, and `Host` a device with applications, as a node. Everything is in virtual time.
`ibwire.testing` is the public face of this package.
"""

from ibwire.peer.end import QKEY, End, create_queue_pair, events_of
from ibwire.peer.host import Host
from ibwire.peer.log import LoggedFrame, describe_frame
from ibwire.peer.pair import Pair
from ibwire.peer.single import Peer
from ibwire.peer.waiting import frames_from, timeouts_until

__all__ = [
    "QKEY",
    "End",
    "Host",
    "LoggedFrame",
    "Pair",
    "Peer",
    "create_queue_pair",
    "describe_frame",
    "events_of",
    "frames_from",
    "timeouts_until",
]
