"""A TCP proxy that counts bytes, and cuts every connection after so many."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

PIECE = 2**14


class CuttingProxy:
    """Stands between clients and one server on a loopback port. `up` and `down` count the bytes
    from clients and to them."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.up, self.down, self.cuts = 0, 0, 0
        self._cut_up: list[int] = []
        self._cut_down: list[int] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_at(self, up: list[int], down: list[int]) -> None:
        """Cut once so many bytes have gone up, or down, altogether."""
        self._cut_up, self._cut_down = sorted(up), sorted(down)

    @property
    def left(self) -> int:
        """Return the number of cuts that are still to come."""
        return len(self._cut_up) + len(self._cut_down)

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                for one, other, is_up in ((client, server, True), (server, client, False)):
                    threading.Thread(
                        target=self._pass_on, args=(one, other, is_up), daemon=True
                    ).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, is_up: bool) -> None:
        with contextlib.suppress(OSError), one, other:
            while piece := one.recv(PIECE):
                other.sendall(piece)
                if is_up:
                    self.up += len(piece)
                else:
                    self.down += len(piece)
                cuts, passed = (self._cut_up, self.up) if is_up else (self._cut_down, self.down)
                if cuts and passed >= cuts[0]:
                    cuts.pop(0)
                    self.cuts += 1
                    for end in (one, other):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        end.shutdown(socket.SHUT_RDWR)
                    return


@contextlib.contextmanager
def cutting_proxy(server_port: int) -> Iterator[CuttingProxy]:
    """A proxy for as long as the context is open."""
    proxy = CuttingProxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()
