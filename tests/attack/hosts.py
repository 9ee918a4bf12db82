"""Two hosts for a test: network namespaces of this machine, and a cable between them. They share the file system."""

import ctypes
import os
import socket
import subprocess
import threading

import cluster

ETH_P_ALL = 3
CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE = 33


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Host:
    """A network namespace with one end of the cable."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        ip("netns", "add", name)

    def plug(self, cable):
        ip("link", "set", cable, "netns", self.name)
        for words in (["addr", "add", f"{self.address}/30", "dev", cable], ["link", "set", cable, "up"],
                      ["link", "set", "lo", "up"]):  # fmt: skip
            ip("-n", self.name, *words)

    def words(self, *words):
        return ["ip", "netns", "exec", self.name, cluster.program(words[0]), *words[1:]]

    def packet_socket(self, cable):
        """A socket that receives every packet of the cable: it stays in the namespace in which a thread made it."""
        made = []

        def make():
            with open(f"/var/run/netns/{self.name}", "rb") as here:
                if ctypes.CDLL(None, use_errno=True).setns(here.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            packets.bind((cable, ETH_P_ALL))
            made.append(packets)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    def remove(self):
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, timeout=60)


def two_hosts(test):
    """Both hosts and the names of the cable's ends, until the test ends; the test skips where they cannot be made."""
    mark = f"mc{os.getpid()}"
    cables = [f"{mark}a", f"{mark}b"]
    hosts = []
    try:
        for end in "ab":  # addresses that RFC 2544 sets aside for tests
            hosts.append(Host(mark + end, "198.18.0." + str(len(hosts) + 1)))
            test.addCleanup(hosts[-1].remove)  # and with it its end of the cable
        ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for host, cable in zip(hosts, cables):
            host.plug(cable)
    except OSError as error:
        test.skipTest(f"no network namespaces here: {error}")
    return hosts, cables
