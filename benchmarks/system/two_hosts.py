"""Simulate two hosts and an unreliable link between them. The hosts are network namespaces on this machine.

A relay passes IP packets between the namespaces. It can drop or delay packets. The module needs root, the command `ip`,
and /dev/net/tun. Nothing outside the two namespaces can reach their addresses.
"""

import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count

# The ioctl request and flags that create a TUN device, a network interface whose packets a program handles.
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 1500
POLL_INTERVAL_S = 0.02


@dataclass
class Link:
    """The link between two hosts.

    Attributes:
        ends: The file descriptors of the two hosts' TUN devices.
        is_cut: True if the link drops all packets.
        loss: The fraction of packets to drop.
        delay_s: The delay of the other packets.
        jitter_s: The maximum random additional delay.
        dropped: The number of dropped packets.
    """

    ends: tuple[int, int]
    is_cut: bool = False
    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    dropped: int = 0
    _is_over: threading.Event = field(default_factory=threading.Event)
    _rng: random.Random = field(default_factory=lambda: random.Random(0))

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Drop all packets during the `with` block."""
        self.is_cut = True
        try:
            yield
        finally:
            self.is_cut = False

    @contextmanager
    def relayed(self) -> Iterator[None]:
        """Relay packets during the `with` block."""
        thread = threading.Thread(target=self._relay)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _relay(self) -> None:
        others = {self.ends[0]: self.ends[1], self.ends[1]: self.ends[0]}
        late: list[tuple[float, int, int, bytes]] = []
        numbers = count()
        with selectors.DefaultSelector() as selector:
            for end in self.ends:
                selector.register(end, selectors.EVENT_READ)
            while not self._is_over.is_set():
                wait = POLL_INTERVAL_S
                if late:
                    wait = min(wait, max(0.0, late[0][0] - time.monotonic()))
                for key, _ in selector.select(wait):
                    packet = os.read(key.fd, 2 * MTU)
                    if self.is_cut or self._rng.random() < self.loss:
                        self.dropped += 1
                        continue
                    due = time.monotonic() + self.delay_s + self._rng.random() * self.jitter_s
                    heapq.heappush(late, (due, next(numbers), others[key.fd], packet))
                while late and late[0][0] <= time.monotonic():
                    _, _, end, packet = heapq.heappop(late)
                    os.write(end, packet)


@dataclass(frozen=True)
class Host:
    """A simulated host: the name of its network namespace, and its address."""

    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Return a command that runs the program `words` on this host."""
        return ["ip", "netns", "exec", self.name, *words]


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host, Link]]:
    """Provide two simulated hosts and the link between them for the `with` block."""
    hosts = (Host("fedraa-a", "10.213.77.1"), Host("fedraa-b", "10.213.77.2"))
    with ExitStack() as stack:
        ends = []
        for host, other in zip(hosts, reversed(hosts), strict=True):
            _ip("netns", "add", host.name)
            stack.callback(_ip, "netns", "delete", host.name)
            end = _open_tun(host.name)
            stack.callback(os.close, end)
            ends.append(end)
            _ip("link", "set", host.name, "netns", host.name)
            inside = ("-n", host.name)
            _ip(*inside, "address", "add", f"{host.address}/32", "peer", other.address, "dev", host.name)
            _ip(*inside, "link", "set", host.name, "mtu", str(MTU), "up")
            _ip(*inside, "link", "set", "lo", "up")
        link = Link((ends[0], ends[1]))
        stack.enter_context(link.relayed())
        yield *hosts, link


def _open_tun(name: str) -> int:
    """Create a TUN device and return its file descriptor."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return end


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
