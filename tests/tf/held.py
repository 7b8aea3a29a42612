"""Which tensors TensorFlow's allocator handed out, from a profile of a step."""


def events(file):
    """What an allocator did, in the order of time, from an `.xplane.pb` file.

    Picoseconds, whether a tensor is handed out, and what is known of it.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found = []
    for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name not in ("MemoryAllocation", "MemoryDeallocation"):
                    continue
                known = {}
                for stat in event.stats:
                    value = getattr(stat, stat.WhichOneof("value"))
                    if stat.HasField("ref_value"):
                        value = plane.stat_metadata[value].name
                    known[plane.stat_metadata[stat.metadata_id].name] = value
                at = line.timestamp_ns * 1000 + event.offset_ps
                found.append((at, name == "MemoryAllocation", known))
    return sorted(found, key=lambda event: event[0])


def fullest(done):
    """The most bytes asked for at once, beside those before."""
    live = {}
    now = most = 0
    for _, out, known in done:
        if out:
            live[known["addr"]] = size = int(known["requested_bytes"])
            now += size
            most = max(most, now)
        else:
            now -= live.pop(known["addr"], 0)
    return most
