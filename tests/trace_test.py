"""trace_test.py RUNS: the traces of the last run in the folder RUNS, decoded here and not by smp, say what its
trace.json says, in both formats: slices lie in each other or apart, and each message leads from a slice to a slice."""

import collections
import json
import pathlib
import struct
import sys

ASKED, PASSED_ON, BEGUN, ANSWERED, RECEIVED = range(5)

# Of one trace, whatever its format. Times in nanoseconds; source and target are slices.
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


# ---- Perfetto's protobuf -------------------------------------------------------------------------


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data):
    """Of a message: number to values, as they lie on the wire."""
    found = collections.defaultdict(list)
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at:at + size], at + size
        else:
            check(kind == 2, "wire type", kind)
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        check(at <= len(data), "a message is cut off")
        found[number].append(value)
    return found


def one(message, number):
    check(len(message[number]) == 1, "field", number, "is there", len(message[number]), "times")
    return message[number][0]


def flow_numbers(event, number):
    """Fixed 64 bits each, one by one or packed."""
    data = b"".join(event[number])
    check(all(isinstance(value, bytes) for value in event[number]) and len(data) % 8 == 0, "broken numbers of flows")
    return [value for (value,) in struct.iter_unpack("<Q", data)]


def signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


def annotations(event):
    found = {}
    for data in event[4]:
        annotation = fields(data)
        if annotation[4]:
            found[one(annotation, 10).decode()] = signed(one(annotation, 4))
        else:
            found[one(annotation, 10).decode()] = struct.unpack("<d", one(annotation, 5))[0]
    return found


def read_tracks(packets):
    """Rank by number of its track: a thread of a process that has its own track."""
    processes, tracks = {}, {}
    for packet in packets:
        for data in packet[60]:
            descriptor = fields(data)
            number = one(descriptor, 1)
            check(number != 0 and number not in processes and number not in tracks, "two tracks", number)
            if descriptor[3]:
                process = fields(one(descriptor, 3))
                processes[number] = (one(process, 1), one(process, 6).decode())
            else:
                thread = fields(one(descriptor, 4))
                name = one(thread, 5).decode()
                parent = one(descriptor, 5)
                check(processes.get(parent) == (one(thread, 1), name), "the thread", name, "is of another process")
                check(one(thread, 1) != 0 and one(thread, 2) != 0, "0 is the idle process")
                tracks[number] = rank_named(name)
    check(len(processes) == len(tracks), len(processes), "processes,", len(tracks), "threads")
    return tracks


def read_perfetto(path):
    trace = fields(path.read_bytes())
    check(list(trace) == [1], "a trace is a row of packets, this one has the fields", list(trace))
    packets = [fields(data) for data in trace[1]]
    tracks = read_tracks(packets)
    slices, outgoing, incoming = [], {}, {}
    open_slices = collections.defaultdict(list)
    events = [packet for packet in packets if packet[11]]
    for packet in sorted(events, key=lambda packet: one(packet, 8)):  # as Perfetto does, stably
        check(one(packet, 10) != 0, "a packet is of no sequence")
        event, time = fields(one(packet, 11)), one(packet, 8)
        track = one(event, 11)
        check(track in tracks, "an event on an unknown track:", track)
        if one(event, 9) == 1:
            place = len(slices)
            slices.append(Slice(tracks[track], time, None, one(event, 23).decode(), one(event, 22).decode(),
                                annotations(event)["microbatch"]))
            open_slices[track].append(place)
            for number, side in [(47, outgoing), (48, incoming)]:
                for flow in flow_numbers(event, number):
                    check(flow not in side, "two ends of one kind has flow", flow)
                    side[flow] = place
        else:
            check(one(event, 9) == 2, "an event of an unknown type:", one(event, 9))
            check(open_slices[track], "a slice ends that has not begun")
            place = open_slices[track].pop()
            slices[place] = slices[place]._replace(end=time)
    check(not any(open_slices.values()), "slices never end:", open_slices)
    check(set(outgoing) == set(incoming), "flows with one end:", sorted(set(outgoing) ^ set(incoming)))
    flows = [Flow(slices[outgoing[number]], slices[incoming[number]]) for number in outgoing]
    return sorted(tracks.values()), slices, flows


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
    run = sorted(pathlib.Path(sys.argv[1]).glob("demo-*"))[-1]
    trace = json.loads((run / "trace.json").read_text())
    chrome = read_chrome(run / "trace-chrome.json")
    perfetto = read_perfetto(run / "trace.pftrace")
    check_trace("trace-chrome.json", chrome, trace)
    check_trace("trace.pftrace", perfetto, trace)
    check(sorted(chrome[1]) == sorted(perfetto[1]), "slices of the two formats differ")
    check(sorted(chrome[2]) == sorted(perfetto[2]), "flows of the two formats differ")
    print(f"{len(chrome[0])} ranks, {len(chrome[1])} slices, {len(chrome[2])} flows, in both formats")


main()
