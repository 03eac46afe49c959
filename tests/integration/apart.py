"""A place apart for jobs: their own /dev/shm, /tmp and System V memory, in which nothing is but what they leave."""

import os
import subprocess
import time

SECONDS_TO_VANISH = 5.0

# Of a mount namespace: size of /dev/shm, and a folder below /tmp that is to stay visible, or nothing.
SET_UP = """
set -e
[ -z "$2" ] || exec 3<"$2"
mount -t tmpfs -o size="$1" tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
if [ -n "$2" ]; then
  mkdir -p "$2"
  mount --no-canonicalize --bind /proc/self/fd/3 "$2"
fi
echo ready
exec cat
"""


def below_tmp(program):
    """The folder right below /tmp that holds a program, or nothing."""
    parts = os.path.realpath(program).split("/")
    return "/".join(parts[:3]) if parts[1] == "tmp" and len(parts) > 3 else ""


class Apart:
    """Exists until it is closed. Commands run in it; their processes are those of the machine."""

    def __init__(self, program, shared_memory="100%"):
        """@param program  that will run there
        @param shared_memory  size of /dev/shm, as mount takes it
        @raises OSError, which says why  the machine allows no namespaces."""
        self.kept = below_tmp(program)
        line = ["unshare", "--mount", "--ipc", "--propagation", "private", "sh", "-c", SET_UP, "sh", shared_memory,
                self.kept]
        self.holder = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True)
        said = self.holder.stdout.readline().strip()
        if said != "ready":
            self.close()
            raise OSError(f"this machine allows no namespaces ({said})")
        self.enter = ["nsenter", "--target", str(self.holder.pid), "--mount", "--ipc"]

    def inside(self, *line):
        """The command that runs `line` in it; its process is that of `line`."""
        return [*self.enter, "sh", "-c", 'cd /tmp && exec env TMPDIR=/tmp "$@"', "sh", *line]

    def files(self):
        """Whatever has a name in /dev/shm and /tmp."""
        root = f"/proc/{self.holder.pid}/root"
        for folder in "/dev/shm", "/tmp":
            for parent, folders, files in os.walk(root + folder):
                own = parent[len(root):]
                folders[:] = [name for name in folders if f"{own}/{name}" != self.kept]
                yield from (f"{own}/{name}" for name in folders + files)

    def system_v(self):
        """Shared memory, semaphores and queues of System V, each as the kernel lists it."""
        lists = ["/proc/sysvipc/" + kind for kind in ("shm", "sem", "msg")]
        said = subprocess.run([*self.enter, "cat", *lists], stdout=subprocess.PIPE, text=True, check=True).stdout
        return (line for line in said.splitlines() if line.split()[0] != "key")

    def content(self):
        return {*self.files(), *self.system_v()}

    def left(self, but=lambda name: False):
        """What is there when nothing vanishes any more: a launcher may be about to tidy up.
        @param but  of what may stay, by its name"""
        end = time.monotonic() + SECONDS_TO_VANISH
        while True:
            left = {name for name in self.content() if not but(name)}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)

    def close(self):
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()
