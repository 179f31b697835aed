"""A TCP proxy that loses answers, or everything, when it is told to."""

import contextlib
import socket
import threading
from collections.abc import Iterator

PIECE = 2**16


class LossyProxy:
    """Stands between clients and one server on a loopback port."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.lose_answer_to = b""
        """The next request that holds this is passed on; its answer is lost, and the connection
        with it."""
        self.cut = False
        """True if nothing is passed on in either direction, as in a parted network: connections
        stay open."""
        self._lost = set[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._server_port)) as server,
        ):
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while piece := client.recv(PIECE):
                while self.cut:
                    threading.Event().wait(0.05)
                if self.lose_answer_to and self.lose_answer_to in piece:
                    self.lose_answer_to = b""
                    self._lost.add(client)
                server.sendall(piece)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := server.recv(PIECE):
                if client in self._lost:
                    client.shutdown(socket.SHUT_RDWR)
                    return
                while self.cut:
                    threading.Event().wait(0.05)
                client.sendall(piece)
            client.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def lossy_proxy(server_port: int) -> Iterator[LossyProxy]:
    """A proxy for as long as the context is open."""
    proxy = LossyProxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()
