"""What the benchmarks' Python programs share: intervals, a fair order, the machine."""
import os
import platform
import statistics


def interval(values):
    """Median and its interval of at least 95 % from order statistics (None below six values), as stats.h."""
    values = sorted(values)
    n = len(values)
    term, below, k = 0.5**n, 0.0, 0
    while k < n // 2 and below + term <= 0.025:
        below += term
        term *= (n - k) / (k + 1)
        k += 1
    low, high = (values[k - 1], values[n - k]) if k else (None, None)
    return {"median": statistics.median(values), "low": low, "high": high}


def text(i, digits=3):
    shown = f"{i['median']:.{digits}f}"
    return shown + (f" [{i['low']:.{digits}f}, {i['high']:.{digits}f}]" if i["low"] is not None else "")


def round_order(n, i):
    """The order in which n run in round i: rotated, and reversed every n rounds, as runner.h."""
    order = [(i + j) % n for j in range(n)]
    return order[::-1] if i // n % 2 else order


def first_line(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return ""


def machine_facts():
    def field(path, prefix):
        with open(path, encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(prefix)), "")

    return {"cpu": field("/proc/cpuinfo", "model name"), "cpus": os.cpu_count(), "kernel": platform.release(),
            "hypervisor": " hypervisor" in field("/proc/cpuinfo", "flags"), "memory": field("/proc/meminfo", "MemTotal"),
            "transparent_hugepage": first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
            "load_average": os.getloadavg()}
