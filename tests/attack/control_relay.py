"""An attacker on the path of control traffic: a relay that takes all TCP connections of programs that run with
connect_shim.c, cuts the streams into frames of ZMTP, keeps them, and changes what a test says."""

import os
import select
import socket
import struct
import threading

GREETING = 64


def framed(flags, body):
    """The bytes of one frame."""
    if len(body) < 256:
        return bytes([flags & ~2, len(body)]) + body
    return bytes([flags | 2]) + struct.pack(">Q", len(body)) + body


class Way:
    """One direction of a connection."""

    def __init__(self):
        self.frames, self.parts, self.raw, self.rest = [], [], bytearray(), b""

    def feed(self, data):
        """The parts that can be passed on: [(number, flags, body)] of the frames that are complete. The greeting has
        the number -1, the place of its bytes in place of flags, and goes on in the pieces in which it comes: each side
        waits for the other's."""
        out, place = [], len(self.raw)
        self.raw += data
        if place < GREETING:
            out.append((-1, place, data[: GREETING - place]))
            data = data[GREETING - place :]
        self.rest += data
        while len(self.rest) >= 2:
            head = 9 if self.rest[0] & 2 else 2
            if len(self.rest) < head:
                break
            size = struct.unpack(">Q", self.rest[1:9])[0] if head == 9 else self.rest[1]
            if len(self.rest) < head + size:
                break
            body = self.rest[head : head + size]
            out.append((len(self.frames), self.rest[0], body))
            self.frames.append(body)
            self.parts.append(self.rest[: head + size])
            self.rest = self.rest[head + size :]
        return out


def honest(_, number, flags, body):
    """A relay that changes nothing passes this on."""
    return body if number < 0 else framed(flags, body)


class Flow:
    """One connection: "to" is the direction of the side that dialled."""

    def __init__(self, port, dialler, listener):
        self.port, self.dialler, self.listener = port, dialler, listener
        self.ways = {"to": Way(), "from": Way()}
        self.ended = threading.Event()
        self.change = honest  # called with the way and a part of Way.feed; returns the bytes to pass on, None to cut


class Relay(threading.Thread):
    """Connections to 127.HIGH.LOW.1 on its port go on to 127.0.0.1 on port HIGH * 256 + LOW."""

    def __init__(self):
        super().__init__(daemon=True)
        # On all addresses, because each port that is meant is another address. Others are hung up on.
        self.listening = socket.create_server(("0.0.0.0", 0), backlog=64)
        self.port = self.listening.getsockname()[1]
        self.flows = []  # all that ever were
        self.ends = {}
        self.born = None  # called with each new flow before it passes a byte
        self.impostors = {}  # port -> recorded Way that answers connections, which then go nowhere
        self.stop_read, self.stop_write = os.pipe()
        self.start()

    def run(self):
        while True:
            ready = select.select([self.stop_read, self.listening, *self.ends], [], [])[0]
            if self.stop_read in ready:
                break
            for one in ready:
                if one is self.listening:
                    self.accept()
                elif one in self.ends:
                    self.move(one, *self.ends[one])
        for flow in self.flows:
            self.end(flow)
        self.listening.close()

    def accept(self):
        dialler = self.listening.accept()[0]
        meant = socket.inet_aton(dialler.getsockname()[0])
        port = meant[1] << 8 | meant[2]
        if meant[0] != 127 or not port:
            return dialler.close()
        listener = None
        try:
            if port in self.impostors:
                dialler.sendall(self.impostors[port].raw[:GREETING])
            else:
                listener = socket.create_connection(("127.0.0.1", port), 30)
        except OSError:
            return dialler.close()
        flow = Flow(port, dialler, listener)
        if self.born:
            self.born(flow)
        self.ends[dialler] = flow, "to", listener
        if listener:
            self.ends[listener] = flow, "from", dialler
        self.flows.append(flow)

    def move(self, one, flow, way, other):
        try:
            data = one.recv(1 << 16)
            if not data:
                return self.end(flow)
            parts = flow.ways[way].feed(data)
            if not other:
                return self.answer(flow, [number for number, _, _ in parts if number >= 0])
            for part in parts:
                passed = flow.change(way, *part)
                if passed is None:
                    return self.end(flow)
                other.sendall(passed)
        except OSError:
            self.end(flow)

    def answer(self, flow, numbers):
        """One recorded frame for each that the dialler sends, and all the rest after the handshake's two."""
        recorded = self.impostors[flow.port].parts if flow.port in self.impostors else []
        for number in numbers:
            flow.dialler.sendall(b"".join(recorded[number : number + 1] if number < 1 else recorded[number:]))

    def end(self, flow):
        for one in (flow.dialler, flow.listener):
            if one:
                self.ends.pop(one, None)
                one.close()
        flow.ended.set()

    def live(self, port=None):
        """The flows that have not ended, those to a port or all."""
        return [flow for flow in list(self.flows) if not flow.ended.is_set() and port in (None, flow.port)]

    def seen(self):
        """All bytes that passed."""
        return b"\0".join(bytes(flow.ways[way].raw) for flow in list(self.flows) for way in ("to", "from"))

    def stop(self):
        os.write(self.stop_write, b"x")
        self.join(60)
        os.close(self.stop_read)
        os.close(self.stop_write)
