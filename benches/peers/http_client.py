"""A thin keep-alive HTTP/1.1 client on asyncio: what the client costs must not decide a comparison.

`Connection.post` returns one JSON body. `Connection.stream` notes the arrival of every piece of a stream and leaves the
parsing for later, so that the client takes little of the cores while servers are measured.
"""

import asyncio
import json
import time

# The last chunk, with the line end of the one before it: a header may end in a zero too.
END = b"\r\n0\r\n\r\n"


def request_bytes(path, body):
    """A POST request with a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Pieces(asyncio.Protocol):
    """Keeps (time, bytes) of everything that arrives for one answer."""

    def __init__(self):
        self.transport, self.asked = None, False

    def reset(self, on_first=None):
        """Get ready for the next answer; `on_first` is called when its first event arrives."""
        self.asked, self.pieces, self.on_first, self.tail = True, [], on_first, b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.pieces.append((time.perf_counter(), data))
        if self.on_first and b"data:" in data:
            self.on_first()
            self.on_first = None
        self.tail = (self.tail + data)[-len(END) :]
        refused = len(self.pieces) == 1 and not data.startswith(b"HTTP/1.1 200")
        if (self.tail == END or refused) and not self.done.done():
            self.asked = False
            self.done.set_result(None)

    def connection_lost(self, exc):
        if self.asked and not self.done.done():
            self.done.set_exception(exc or ConnectionError("closed within an answer"))


class Connection:
    """One connection to a local server; reopened when the server has closed it between requests."""

    def __init__(self, port):
        self.port = port
        self.reader = self.writer = self.pieces = None

    async def post(self, path, body):
        """The parsed body of an answer in one piece."""
        try:
            return json.loads(await self._post(path, body))
        except (asyncio.IncompleteReadError, ConnectionError) as e:
            if getattr(e, "partial", b""):
                raise
            self.writer = None
            return json.loads(await self._post(path, body))

    async def _post(self, path, body):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        self.writer.write(request_bytes(path, body))
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        data = await self._body(head)
        if b"connection: close" in head:
            self.close()
        if head[9:12] != b"200":
            raise RuntimeError(f"{head[9:12].decode()}: {data[:300]!r}")
        return data

    async def _body(self, head):
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return await self.reader.readexactly(int(line[15:]))
        parts = []
        while size := int((await self.reader.readline()).strip(), 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return b"".join(parts)

    async def stream(self, path, body, on_first=None):
        """The recorded pieces of a stream, for `events`; `on_first` is called when the first event arrives."""
        for attempt in (1, 2):
            if self.pieces is None or self.pieces.transport.is_closing():
                loop = asyncio.get_running_loop()
                _, self.pieces = await loop.create_connection(Pieces, "127.0.0.1", self.port)
            self.pieces.reset(on_first)
            self.pieces.transport.write(request_bytes(path, body))
            try:
                await self.pieces.done
                return self.pieces.pieces
            except ConnectionError:
                # The server may have closed an idle connection just as the request went out.
                if self.pieces.pieces or attempt == 2:
                    raise
                self.pieces = None

    def close(self):
        """Close whatever is open."""
        if self.writer is not None:
            self.writer.close()
        if self.pieces is not None and self.pieces.transport is not None:
            self.pieces.transport.abort()
        self.reader = self.writer = self.pieces = None


def events(pieces):
    """The events of a recorded stream: (arrival of its last byte, parsed JSON)."""
    head = pieces[0][1]
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(b"".join(data for _, data in pieces)[:600].decode("utf-8", "replace"))
    found, buffer, headers = [], b"", True
    for at, data in pieces:
        buffer += data
        if headers:
            _, mark, rest = buffer.partition(b"\r\n\r\n")
            if not mark:
                continue
            buffer, headers = rest, False
        # The frames of the chunked coding are lines of their own, so they do not disturb lines that begin with "data:".
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                found.append((at, json.loads(line[6:])))
    return found
