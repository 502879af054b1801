"""A server that answers bytes as they are, and answers that never end or make no sense, for every HTTP client here."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Send = Callable[[bytes], None]
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

# Answers that end never, though there is always something to read: what comes first, and what then comes at intervals.
ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "status line": (b"HTTP/1.1 200 ", b"x"),
    "header": (OK + b"X: ", b"x"),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "header of 100 Continue": (b"HTTP/1.1 100 Continue\r\n", b"X: y\r\n"),
    "chunk size": (CHUNKED, b"0"),
    "chunk extension": (CHUNKED + b"5", b";x"),
    "trailer": (CHUNKED + b"0\r\n", b"X: y\r\n"),
    "body": (OK + b"\r\n", b" "),
    "redirect": (b"HTTP/1.1 307 x\r\nLocation: /x\r\n", b"X: "),
}

# Answers that break off or that no client can make sense of.
SENSELESS: dict[str, bytes] = {
    "nothing": b"",
    "no HTTP": b"hello",
    "status": b"HTTP/1.1 abc OK\r\n\r\n",
    "status beyond": b"HTTP/1.1 99999999999999999999 OK\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 x\r\n\r\n",
    "long line": OK + b"X: " + b"x" * 70_000 + b"\r\n\r\n",
    "many headers": OK + b"X: y\r\n" * 200 + b"\r\n",
    "header without a name": OK + b": y\r\n\r\n",
    "bytes in a header": OK + b"Content-Type: \xff; charset\r\nContent-Length: 1\r\n\r\nx",
    "two lengths": OK + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
    "long length": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nabc",
    "negative length": OK + b"Content-Length: -3\r\n\r\nabc",
    "chunk size": CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n",
    "negative chunk": CHUNKED + b"-5\r\nabcde\r\n0\r\n\r\n",
    "huge chunk": CHUNKED + b"f" * 40 + b"\r\nabc",
    "other transfer coding": OK + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "Location of bytes": b"HTTP/1.1 302 x\r\nLocation: http://\xff\xfe/\r\nContent-Length: 0\r\n\r\n",
    "Location of half an address": b"HTTP/1.1 302 x\r\nLocation: http://[::1/\r\nContent-Length: 0\r\n\r\n",
    "relative Location of half an address": b"HTTP/1.1 302 x\r\nLocation: //[::1/\r\nContent-Length: 0\r\n\r\n",
    "Location with an empty label": b"HTTP/1.1 302 x\r\nLocation: http://a..localhost/\r\nContent-Length: 0\r\n\r\n",
    "Location with a long label": b"HTTP/1.1 302 x\r\nLocation: https://" + b"a" * 70 + b".localhost/\r\n\r\n",
    "Location with a port beyond": b"HTTP/1.1 302 x\r\nLocation: http://127.0.0.1:99999/\r\n\r\n",
    "Location of a future address": b"HTTP/1.1 302 x\r\nLocation: https://[v1.x]/\r\n\r\n",
    "dates beyond": b"HTTP/1.1 503 x\r\nRetry-After: Fri, 31 Dec 99999999999999999 23:59:59 GMT\r\n"
    b"Date: Fri, 31 Dec 99999999999999999 23:59:59 GMT\r\nContent-Length: 0\r\n\r\n",
    "dates at the ends": b"HTTP/1.1 503 x\r\nRetry-After: Fri, 31 Dec 9999 23:59:59 -2359\r\n"
    b"Date: Mon, 01 Jan 0001 00:00:00 +2359\r\nContent-Length: 0\r\n\r\n",
}


@contextmanager
def raw_server(answer: Callable[[Send], None]) -> Iterator[str]:
    """Serve on a free loopback port, and give its ``HOST:PORT``; each request is answered by what `answer` sends."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        def send(data: bytes) -> None:
            if ended.is_set():
                raise OSError("the test is over")
            connection.sendall(data)

        with connection, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                data = connection.recv(65536)
                if not data or data.startswith(b"\x16"):  # a client that asks whether this is TLS
                    return
                request += data
            answer(send)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def endless(name: str, pause: float = 0.02) -> Callable[[Send], None]:
    """Return an answer of `ENDLESS`, of which a piece comes every `pause` seconds."""
    first, more = ENDLESS[name]

    def answer(send: Send) -> None:
        send(first)
        while True:
            send(more)
            time.sleep(pause)

    return answer
