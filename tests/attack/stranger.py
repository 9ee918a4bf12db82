"""A stranger to the data plane, a program that also runs as another user: speaks the handshake of the tcp transport and
of the shm socket, and prints what it got as one line of JSON. Python standard library and frames.py only.

    stranger.py read PORTS INSTANCES GUESSES      of each (comma-separated; none or guess): dial, claim, read 4 KiB
    stranger.py claim PORTS INSTANCES             of each: dial, claim with a newer descriptor; stay until stdin ends
    stranger.py squat SECONDS NAME...             until stdin ends: bind abstract shm names, count what dialers send
    stranger.py bind PATH...                      try to bind sockets at these paths
    stranger.py knock PATH...                     connect to sockets there: the handshake of shm, or the start of ZMTP
"""

import itertools
import json
import os
import select
import socket
import sys
import time

from frames import NAMES, Lane, buffers_of, challenge, descriptor, frame, hello, TYPES


BLOCKS = 1  # the access of buffers that every member may read


class Refused(Exception):
    pass


def answer(lane, expected):
    """The payload of the next frame, which has a type of `expected`."""
    try:
        kind, _, _, payload = lane.receive()
    except ConnectionError as error:
        raise Refused(str(error)) from error
    if kind == TYPES["refuse"]:
        raise Refused(payload.decode(errors="replace"))
    if kind != TYPES[expected]:
        raise Refused(f"frame {kind} in place of {expected}")
    return payload


def join(port, instance, secured, version):
    """Both lanes of a connection: (lanes, the listener's descriptor)."""
    connection, lanes, told = os.urandom(16), [], b""
    for number in (0, 1):
        one = Lane(port, 60)
        lanes.append(one)
        one.send(frame(TYPES["hello"], hello(instance, connection=connection, lane=number, secured=secured)))
        answer(one, "challenge")
        proof = os.urandom(32) if secured else bytes(32)
        one.send(frame(TYPES["proof"], proof + (descriptor(instance, version) if number == 0 else b"")))
        told += answer(one, "ready")
    return lanes, told


def read(port, instance, secured):
    got = {"refused": None, "descriptor": 0, "bytes": 0}
    try:
        lanes, told = join(port, instance, secured, 1)
        got["descriptor"] = len(told)
        blocks = next((number for number, access, *_ in buffers_of(told) if access == BLOCKS), 1)
        lanes[1].send(frame(TYPES["read"], number=1, buffer=blocks, length=4096))
        got["bytes"] = len(answer(lanes[1], "data"))
    except (Refused, OSError) as error:
        got["refused"] = str(error)
    return got


def claim(port, instance, kept):
    try:
        lanes, told = join(port, instance, 0, 1_000_000)
        kept += lanes
        return {"refused": None, "descriptor": len(told)}
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
                peer.send(frame(TYPES["challenge"], challenge(instance)))
                data = peer.recv(1 << 17)
                sent += len(data)
                peer.send(frame(TYPES["ready"], descriptor(instance)))
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


def knock(path, seconds):
    """Connects to the socket at `path`, and waits so long for each answer. Returns them: frames by name, bytes,
    descriptors."""
    got = {"frames": [], "bytes": 0, "descriptors": 0, "closed": False}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
        first = frame(TYPES["hello"], hello(os.urandom(16), lanes=1))
        second = frame(TYPES["proof"], os.urandom(32) + descriptor(os.urandom(16)))
    except OSError:  # EPROTOTYPE: control sockets are streams
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        first = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00NULL" + bytes(48)
        second = b"\x04\x06\x05READY"
    connection.settimeout(seconds)
    try:
        for data in (first, second):
            connection.send(data)
            told, extra, _, _ = connection.recvmsg(1 << 17, 1024)
            got["bytes"] += len(told)
            got["descriptors"] += len(extra)
            if connection.type == socket.SOCK_SEQPACKET and len(told) >= 64:
                got["frames"].append(NAMES.split()[told[6] - 1])
        while told:
            told, extra, _, _ = connection.recvmsg(1 << 17, 1024)
            got["bytes"] += len(told)
            got["descriptors"] += len(extra)
        got["closed"] = True
    except (BrokenPipeError, ConnectionResetError):
        got["closed"] = True
    except TimeoutError:
        pass  # it stays open
    return got


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
    elif words[0] == "knock":
        print(json.dumps({path: knock(path, float(words[1])) for path in words[2:]}))


if __name__ == "__main__":
    main(sys.argv[1:])
