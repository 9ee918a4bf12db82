"""A stranger to the data plane, in one file that also runs as another user: speaks the handshake of the tcp transport
and of the shm socket, and prints what it got as one line of JSON. Python standard library only.

    stranger.py read PORTS INSTANCES GUESSES      of each (comma-separated; none or guess): dial, claim, read 4 KiB
    stranger.py claim PORTS INSTANCES             of each: dial, claim with a newer descriptor; stay until stdin ends
    stranger.py squat SECONDS NAME...             until stdin ends: bind abstract shm names, count what dialers send
    stranger.py bind PATH...                      try to bind sockets at these paths
"""

import itertools
import json
import os
import select
import socket
import struct
import sys
import time

HELLO, CHALLENGE, PROOF, READY, REFUSE, READ, DATA = 1, 2, 3, 4, 5, 6, 7
TABLE = []
for n in range(256):
    for _ in range(8):
        n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def frame(kind, payload=b"", number=0, buffer=0, length=None):
    length = len(payload) if length is None else length
    head = struct.pack("<IHBBQIIQQIIQI", 0x4658434D, 2, kind, 0, number, buffer, 0, 0, length, 0, 0, 0, 0)
    return head + struct.pack("<I", crc32c(head)) + payload


def text(value):
    return struct.pack("<H", len(value)) + value


def descriptor(instance, version):
    body = struct.pack("<IHH", 0x4458434D, 2, 0) + instance + bytes(16) + struct.pack("<I", version)
    body += text(b"stranger") + struct.pack("<H", 0) + struct.pack("<H", 0)
    return body + struct.pack("<I", crc32c(body))


class Refused(Exception):
    pass


def receive(connection):
    def exactly(count):
        data = b""
        while len(data) < count:
            more = connection.recv(count - len(data))
            if not more:
                raise Refused("closed")
            data += more
        return data

    head = exactly(64)
    kind, length = head[6], struct.unpack_from("<Q", head, 32)[0]
    payload = exactly(length) if kind != READ else b""
    if kind == REFUSE:
        raise Refused(payload.decode(errors="replace"))
    return kind, payload


def join(port, instance, secured, version):
    """Both lanes of a connection: (sockets, bytes of the listener's descriptor)."""
    connection, lanes, told = os.urandom(16), [], 0
    for lane in (0, 1):
        one = socket.create_connection(("127.0.0.1", port), 10)
        hello = instance + bytes(16) + connection + struct.pack("<HHB", lane, 2, secured) + os.urandom(32)
        one.sendall(frame(HELLO, hello + text(b"stranger")))
        receive(one)
        proof = os.urandom(32) if secured else bytes(32)
        one.sendall(frame(PROOF, proof + (descriptor(instance, version) if lane == 0 else b"")))
        told += len(receive(one)[1])
        lanes.append(one)
    return lanes, told


def read(port, instance, secured):
    got = {"refused": None, "descriptor": 0, "bytes": 0}
    try:
        lanes, got["descriptor"] = join(port, instance, secured, 1)
        lanes[1].sendall(frame(READ, number=1, buffer=1, length=4096))
        kind, payload = receive(lanes[1])
        got["bytes"] = len(payload) if kind == DATA else 0
    except (Refused, OSError) as error:
        got["refused"] = str(error)
    return got


def claim(port, instance, kept):
    try:
        lanes, told = join(port, instance, 0, 1_000_000)
        kept += lanes
        return {"refused": None, "descriptor": told}
    except (Refused, OSError) as error:
        return {"refused": str(error), "descriptor": 0}


def squat(seconds, names):
    """Binds every abstract name that comes free, until the test closes stdin or the seconds have passed; (bound, bytes
    and descriptors that dialers sent)."""
    listeners, bound, sent, passed = {}, 0, 0, 0
    end = time.monotonic() + seconds
    print("squatting", flush=True)
    while time.monotonic() < end and not select.select([sys.stdin], [], [], 0.01)[0]:
        for name in names:
            if name in listeners:
                continue
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                one.bind(b"\0" + name.encode())
                one.listen(16)
                one.settimeout(0.01)
                listeners[name] = one
                bound += 1
            except OSError:
                one.close()
        for one in listeners.values():
            try:
                peer, _ = one.accept()
            except OSError:
                continue
            peer.settimeout(2)
            try:
                data, extra, _, _ = peer.recvmsg(1 << 17, 1024)
                sent += len(data)
                passed += len(extra)
                instance = data[64 + 16 : 64 + 32] if len(data) >= 96 else bytes(16)  # whom the dialer wants
                challenge = instance + b"\0" + os.urandom(32) + bytes(32) + text(b"stranger")
                peer.send(frame(CHALLENGE, challenge))
                data = peer.recv(1 << 17)
                sent += len(data)
                peer.send(frame(READY, descriptor(instance, 1)))
                for _ in range(8):
                    data, extra, _, _ = peer.recvmsg(1 << 17, 1024)
                    sent += len(data)
                    passed += len(extra)
            except OSError:
                pass
    return {"bound": bound, "bytes": sent, "descriptors": passed}


def bind(paths):
    result = {}
    for path in paths:
        try:
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind(path)
            result[path] = "bound"
        except OSError as error:
            result[path] = type(error).__name__
    return result


def main(words):
    lists = [word.split(",") for word in words[1:]]
    if words[0] == "read":
        attempts = itertools.product(*lists)
        print(json.dumps([read(int(port), bytes.fromhex(name), guess != "none") for port, name, guess in attempts]))
    elif words[0] == "claim":
        kept = []
        claims = [claim(int(port), bytes.fromhex(name), kept) for port, name in itertools.product(*lists)]
        print(json.dumps(claims), flush=True)
        sys.stdin.read()
    elif words[0] == "squat":
        print(json.dumps(squat(float(words[1]), words[2:])))
    elif words[0] == "bind":
        print(json.dumps(bind(words[1:])))


if __name__ == "__main__":
    main(sys.argv[1:])
