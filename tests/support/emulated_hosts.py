#!/usr/bin/python3
"""An Open MPI job on several hosts that this machine pretends to have.

    emulated_hosts.py [--hosts 4] [--ranks 2] [--shm 1g] [--rate 10gbit] [--setup COMMAND] [--timeout 120] [--head] -- PROGRAM [ARGS]

Each host has its own network, host name (node0, ...), processes, mounts, IPC namespace and /dev/shm; TCP over a
bridge connects them.  --ranks: on each host.  --rate: of each host's link, as tc(8) has it.  --setup: a shell command
that runs on each host before the job, and whose children live until the job ends ($HOST: which one).  "TMP" among ARGS is
a directory that all hosts share, as $TMPDIR is.  --head: PROGRAM runs once, as on a login node; "MPIRUN" in ARGS is the command
that starts ranks on the hosts.

All of it lives in a PID namespace of its own: whatever happens to this process, the kernel ends the job, and removes
interfaces and mounts.  Needs root, iproute2 and util-linux.

Exit status: the job's; 124: it took longer than the timeout; 77: something that this needs is missing.
"""
import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NAMESPACES = ["-n", "-m", "-u", "-i", "-p"]
STATE = "EMULATED_HOSTS_STATE"
ADDRESSES = "10.87.0.0/16"


def address(host):
    return f"10.87.{host // 250}.{host % 250 + 1}"


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run(*command, **more):
    subprocess.run(command, check=True, **more)


def pid_of(state, host):
    with open(os.path.join(state, host + ".pid"), encoding="ascii") as f:
        return f.read()


def enter(pid):
    return ["nsenter", "-t", pid, "-m", "-u", "-i", "-n", "-p", "--root", "--wd", "--"]  # its root may be a chroot's


def private_tmpfs(where, size):
    run("mount", "-t", "tmpfs", "-o", f"mode=1777,size={size}", "none", where)


def be_a_host(state, name, shm):
    """The first process of a host: sets it up, and collects what dies there."""
    run("mount", "--make-rprivate", "/")
    run("hostname", name)
    private_tmpfs("/dev/shm", shm)
    run("mount", "--bind", os.path.join(state, "hosts"), "/etc/hosts")
    run("ip", "link", "set", "lo", "up")
    with open(os.path.join(state, name + ".up"), "w", encoding="ascii"):
        pass
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


def shape(device, rate, inside=()):
    run(*inside, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms")


def start_host(args, state, i):
    name = f"node{i}"
    starter = subprocess.Popen(["unshare", *NAMESPACES, "--fork", "--kill-child=KILL", "--mount-proc", sys.executable, "-B",
                                os.path.abspath(__file__), "--be", state, name, args.shm], stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not os.path.exists(os.path.join(state, name + ".up")):
        if starter.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{name} did not start")
        time.sleep(0.005)
    with open(f"/proc/{starter.pid}/task/{starter.pid}/children", encoding="ascii") as f:
        pid = f.read().split()[0]
    with open(os.path.join(state, name + ".pid"), "w", encoding="ascii") as f:
        f.write(pid)
    run("ip", "link", "add", f"v{i}", "mtu", "9000", "type", "veth", "peer", "name", "eth0", "mtu", "9000", "netns", pid)
    run("ip", "link", "set", f"v{i}", "master", "br0", "up")
    inside = ["nsenter", "-t", pid, "-n", "--"]
    run(*inside, "ip", "addr", "add", address(i) + "/16", "dev", "eth0")
    run(*inside, "ip", "link", "set", "eth0", "up")
    if args.rate:
        shape(f"v{i}", args.rate)
        shape("eth0", args.rate, inside)
    if args.setup:
        run(*enter(pid), "/bin/sh", "-c", args.setup, env={**os.environ, "HOST": name})


def be_the_head(args, state):
    """The first process of the outer namespaces, with the bridge and mpirun."""
    run("mount", "--make-rprivate", "/")
    private_tmpfs(state, "1g")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
    run("ip", "link", "set", "br0", "mtu", "9000", "up")
    run("ip", "addr", "add", "10.87.255.254/16", "dev", "br0")
    run("hostname", "head")
    with open(os.path.join(state, "hosts"), "w", encoding="ascii") as f:
        f.write("127.0.0.1 localhost\n10.87.255.254 head\n")
        f.writelines(f"{address(i)} node{i}\n" for i in range(args.hosts))
    run("mount", "--bind", os.path.join(state, "hosts"), "/etc/hosts")
    for i in range(args.hosts):
        start_host(args, state, i)
    # One session for all ranks: Linux 6.18 stops every other process for up to a minute while the ranks of two sessions
    # wait with sched_yield, since it then schedules the group of one session again and again (CONFIG_SCHED_AUTOGROUP).
    env = {k: v for k, v in os.environ.items() if not k.startswith("OMPI_")}
    env.update({STATE: state, "TMPDIR": state, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_btl_tcp_if_include": ADDRESSES,
                "OMPI_MCA_oob_tcp_if_include": ADDRESSES, "OMPI_MCA_mpi_yield_when_idle": "1",
                "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_plm": "rsh",
                "OMPI_MCA_plm_rsh_agent": os.path.abspath(__file__), "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
                "OMPI_MCA_orte_tmpdir_base": state, "OMPI_MCA_orte_leave_session_attached": "1"})
    hosts = ",".join(f"node{i}:{args.ranks}" for i in range(args.hosts))
    mpirun = [args.mpirun, "--host", hosts, "-np", str(args.hosts * args.ranks), "--map-by", "slot", "-x", "TMPDIR"]
    program = [state if a == "TMP" else a for a in args.program]
    command = [a.replace("MPIRUN", " ".join(mpirun)) for a in program] if args.head else [*mpirun, *program]
    return subprocess.run(command, env=env, check=False).returncode


def be_the_agent(state, host, words):
    """What mpirun takes for ssh, which would hand the words to a shell."""
    os.execvp("nsenter", [*enter(pid_of(state, host)), "/bin/sh", "-c", " ".join(words)])


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shm", default="1g")
    parser.add_argument("--rate", default="")
    parser.add_argument("--setup", default="")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--inner", default="", help=argparse.SUPPRESS)
    parser.add_argument("program", nargs="+")
    return parser.parse_args()


def main():
    state = os.environ.get(STATE, "")
    if state and len(sys.argv) > 2 and sys.argv[1].startswith("node"):
        be_the_agent(state, sys.argv[1], sys.argv[2:])
    if len(sys.argv) == 5 and sys.argv[1] == "--be":
        be_a_host(*sys.argv[2:])
    args = parse()
    if args.inner:
        return be_the_head(args, args.inner)
    missing = [p for p in ("ip", "unshare", "nsenter", "mount", args.mpirun, *(["tc"] if args.rate else [])) if shutil.which(p) is None]
    if os.geteuid() != 0 or missing:
        print("needs", "root" if os.geteuid() != 0 else ", ".join(missing))
        return 77
    alone = ["unshare", *NAMESPACES, "--fork", "--kill-child=KILL", "--mount-proc"]
    probe = subprocess.run([*alone, "sh", "-c", "mount --make-rprivate / && ip link add br0 type bridge && ip link add v0 type veth"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if probe.returncode != 0:
        print("no namespaces, bridges or mounts here:", probe.stdout.strip())
        return 77
    with tempfile.TemporaryDirectory(prefix="lmdbio_hosts_") as folder:
        command = [*alone, sys.executable, "-B", os.path.abspath(__file__), "--inner", folder, *sys.argv[1:]]
        with subprocess.Popen(command, preexec_fn=die_with_parent) as job:
            try:
                return job.wait(args.timeout)
            except subprocess.TimeoutExpired:
                print(f"not done after {args.timeout:g} s", file=sys.stderr)
                return 124
            finally:
                job.kill()


if __name__ == "__main__":
    sys.exit(main())
