"""The life of a mount: start, signals, kills, the snapshot that it holds, memory."""
import ctypes
import errno
import os
import random
import signal
import subprocess

import command_test
import shimtest
from files_mount_test import Case


class Life(Case):
    def test_background(self):
        path, at = self.write({b"a": b"1"}), self.fresh("at")
        self.lmdbio("mount", path, at)
        self.addCleanup(subprocess.run, ["fusermount3", "-u", "-z", "-q", at])
        with open(at + "/a", "rb") as f:
            self.assertEqual(f.read(), b"1")
        subprocess.run(["fusermount3", "-u", at], check=True)
        self.assertFalse(os.path.ismount(at))

    def test_signals(self):
        path = self.write({b"a": b"1"})
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            at = self.mount(path)
            self.server.send_signal(number)
            self.assertEqual(self.server.wait(timeout=60), 0)
            self.assertFalse(os.path.ismount(at))

    def test_a_signal_just_before_the_wait(self):
        if shimtest.CONFIG["sanitize"]:
            self.skipTest("needs a preload")
        path = self.write({b"a": b"1"})
        for _ in range(4):  # libfuse waits 50 ms late: see late_sem_wait.c
            self.mount(path, env={"LD_PRELOAD": shimtest.CONFIG["late_sem_wait"]})
            self.server.send_signal(signal.SIGINT)
            self.assertEqual(self.server.wait(timeout=60), 0)

    def in_background(self, path, at, **more):
        """Starts a mount.  Returns the process that starts it, and a descriptor that ends when the server does."""
        end, held = os.pipe()
        self.addCleanup(os.close, end)
        process = subprocess.Popen([shimtest.CONFIG["command"], "mount", path, at], pass_fds=[held], stdin=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, **more)
        os.close(held)
        return process, end

    def test_signals_during_the_start(self):
        path, r = self.write({b"a": b"1"}), random.Random(25)
        for i in range(60):
            at = self.fresh(f"at{i}")
            process, end = self.in_background(path, at, start_new_session=True)
            for _ in range(r.randrange(400000)):  # some moment
                pass
            if i % 3 == 0:
                process.kill()  # the server cannot tell that it is ready
            else:
                os.killpg(process.pid, (signal.SIGINT, signal.SIGTERM)[i % 3 - 1])
            process.wait(timeout=60)
            try:
                names = os.listdir(at)
            except OSError as e:  # it unmounts at this moment
                self.assertIn(e.errno, (errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV))
                names = []
            if names == ["a"]:
                subprocess.run(["fusermount3", "-u", "-z", "-q", at], stderr=subprocess.DEVNULL)
            self.assertEqual(os.read(end, 1), b"")
            self.assertEqual(os.listdir(at), [])
            self.assertFalse(os.path.ismount(at))

    def test_reader_slots(self):
        path = self.write({b"a": b"1"})
        self.mount(path)
        w, lines = command_test.Writer(path), []
        listed = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda text, _: lines.append(text) or 0)
        w.lib.mdb_reader_list(w.env, listed, None)
        w.close()
        self.assertEqual(sum(int(line.split()[0]) == self.server.pid for line in lines if line.split()[0].isdigit()), 9)

    def test_relative_settings(self):
        self.write({b"a": b"1"}, path=self.fresh("db"))
        os.mkdir(os.path.join(self.dir, "at"))
        env = shimtest.environment("stock", {"LMDBIO_STATS": "st.json"})
        process, end = self.in_background("db", "at", cwd=self.dir, env=env)
        self.assertEqual(process.wait(timeout=60), 0)
        subprocess.run(["fusermount3", "-u", self.dir + "/at"], check=True)
        self.assertEqual(os.read(end, 1), b"")
        self.assertGreater(os.path.getsize(self.dir + "/st.json"), 0)

    def test_killed(self):
        at = self.mount(self.write({b"a": b"1"}))
        self.server.kill()
        self.server.wait()
        self.assertEqual(self.error_of(os.stat, at + "/a"), errno.ENOTCONN)
        subprocess.run(["fusermount3", "-u", at], check=True)
        self.assertEqual(os.listdir(at), [])

    def test_the_snapshot_stays(self):
        path = self.write({b"%04d" % i: b"%d" % i * 100 for i in range(2000)})
        at = self.mount(path)
        w = command_test.Writer(path)
        for i in range(20):
            w.put([(b"%04d" % j, b"new") for j in range(i * 100, i * 100 + 100)] + [(b"more%d" % i, b"x" * 9000)])
        w.close()
        self.check_tree(at, {b"%04d" % i: b"%d" % i * 100 for i in range(2000)})
        later = self.mount(path)
        self.assertEqual(len(os.listdir(later)), 2020)

    def test_memory_of_names(self):
        count = 100000
        path = self.write([(b"%03d/image_%07d.jpg" % (i // 1000, i), b"") for i in range(count)])
        at = self.mount(path)

        def anonymous():
            with open(f"/proc/{self.server.pid}/status", encoding="ascii") as f:
                return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) << 10
        before = anonymous()
        self.assertEqual(sum(len(fs) for _, _, fs in os.walk(at)), count)
        if not shimtest.CONFIG["sanitize"]:
            self.assertLess((anonymous() - before) / count, 64)


if __name__ == "__main__":
    shimtest.main()
