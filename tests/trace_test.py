"""trace_test.py RUNS: the traces of the last run in the folder RUNS, decoded here and not by smp, say what its
trace.json says: slices lie in each other or apart, and each message leads from a slice to a slice."""

import collections
import json
import pathlib
import sys

ASKED, PASSED_ON, BEGUN, ANSWERED, RECEIVED = range(5)

# Of one trace. Times in nanoseconds; source and target are slices.
Slice = collections.namedtuple("Slice", "rank start end name category microbatch")
Flow = collections.namedtuple("Flow", "source target")


def check(condition, *what):
    if not condition:
        sys.exit(" ".join(str(part) for part in what))


def rank_named(name):
    word, number = name.split()
    check(word == "rank", "a track is called", name)
    return int(number)


# ---- Chrome's JSON -------------------------------------------------------------------------------


def nanoseconds(microseconds):
    return round(1000 * microseconds)


def bind(slices, event, binds_to_next):
    """The slice that viewers bind this end of a flow to."""
    time = nanoseconds(event["ts"])
    own = [slice for slice in slices if slice.rank == event["pid"]]
    if binds_to_next:
        later = [slice for slice in own if slice.start > time]
        check(later, "no slice follows", event)
        return min(later, key=lambda slice: slice.start)
    around = [slice for slice in own if slice.start <= time <= slice.end]
    check(around, "no slice is around", event)
    return max(around, key=lambda slice: slice.start)


def read_chrome(path):
    events = json.loads(path.read_text())["traceEvents"]
    ranks, slices, ends = [], [], collections.defaultdict(list)
    for event in events:
        kind = event["ph"]
        if kind == "M":
            check(rank_named(event["args"]["name"]) == event["pid"], event)
            ranks.append(event["pid"])
        elif kind == "X":
            start = nanoseconds(event["ts"])
            slices.append(Slice(event["pid"], start, start + nanoseconds(event["dur"]), event["name"], event["cat"],
                                event["args"]["microbatch"]))
        else:
            check(kind in "sf", "an event of an unknown kind:", event)
            ends[event["id"]].append(event)
    flows = []
    for number, pair in ends.items():
        check([event["ph"] for event in pair] == ["s", "f"], "flow", number, "has not one end of each kind:", pair)
        start, end = pair
        check(start["ts"] <= end["ts"], "flow", number, "ends before it starts")
        flows.append(Flow(bind(slices, start, False), bind(slices, end, end.get("bp") != "e")))
    return ranks, slices, flows


# ---- what was recorded ---------------------------------------------------------------------------


def recorded_slices(trace):
    """Without names of phases, which are the library's."""
    origin = min([rank["start"] for rank in trace["ranks"]] +
                 [span[0] for rank in trace["ranks"] for span in rank["between"] + rank["spans"]])
    return collections.Counter((rank["pp_rank"], span[0] - origin, span[1] - origin, span[3])
                               for rank in trace["ranks"] for span in rank["between"] + rank["spans"])


def recorded_flows(trace):
    """Between which ranks messages went of which both ends were recorded."""
    requests = collections.defaultdict(lambda: collections.defaultdict(list))
    for rank in trace["ranks"]:
        for _, caller, request, kind in rank["requests"]:
            requests[caller, request][kind].append(rank["pp_rank"])
    flows = collections.Counter()
    for ends in requests.values():
        for begun in ends[BEGUN]:
            flows.update((cause, begun) for cause in ends[ASKED] + ends[PASSED_ON])
        flows.update(zip(ends[ANSWERED], ends[RECEIVED]))
    return flows


def check_nesting(slices):
    """Slices of a track lie in each other or apart."""
    for rank in {slice.rank for slice in slices}:
        around = []
        own = [slice for slice in slices if slice.rank == rank]
        for slice in sorted(own, key=lambda slice: (slice.start, -slice.end)):
            check(slice.start <= slice.end, "ends before it starts:", slice)
            while around and around[-1].end <= slice.start:
                around.pop()
            check(not around or slice.end <= around[-1].end, slice, "overlaps", around[-1:])
            around.append(slice)


def check_trace(name, read, trace):
    ranks, slices, flows = read
    wanted = [rank["pp_rank"] for rank in trace["ranks"]]
    check(sorted(ranks) == wanted, name, "has tracks of the ranks", ranks, "instead of", wanted)
    check_nesting(slices)
    found = collections.Counter((slice.rank, slice.start, slice.end, slice.microbatch) for slice in slices)
    wanted = recorded_slices(trace)
    check(found == wanted, name, "lacks", wanted - found, "and has", found - wanted)
    paths = set(trace["modules"]) - {""}
    known = paths | {"the model", "the step body", "optimizer.step()", "the program between steps", "smp between steps"}
    strange = {slice.name for slice in slices} - known
    check(not strange and {slice.name for slice in slices} & paths, name, "has slices of no module:", strange)
    check({"forward", "backward"} <= {slice.category for slice in slices}, name, "does not name the phases")
    for flow in flows:
        check(flow.source.start < flow.target.start, name, "leads to an older slice:", flow)
    found = collections.Counter((flow.source.rank, flow.target.rank) for flow in flows)
    wanted = recorded_flows(trace)
    check(wanted and found == wanted, name, "lacks the flows", wanted - found, "and has", found - wanted)


def main():
    run = sorted(pathlib.Path(sys.argv[1]).glob("demo-*/trace-chrome.json"))[-1].parent
    trace = json.loads((run / "trace.json").read_text())
    chrome = read_chrome(run / "trace-chrome.json")
    check_trace("trace-chrome.json", chrome, trace)
    print(f"{len(chrome[0])} ranks, {len(chrome[1])} slices, {len(chrome[2])} flows")



main()
