# A part of lone.pyx: loads that need no Python between what was received and its answer.

cdef object bare_transport(connection):
    """The transport of a `Connection` when the system is given what is sent without it: nothing else is to go out before, or together
    with it. Else None."""
    cdef object transport = connection.transport
    if (
        <int>connection.fd < 0 or transport is None or connection.out
        or transport.is_closing() or transport.get_write_buffer_size()
    ):
        return None
    return transport


def transport_of(connection):
    """See ``bare_transport``."""
    return bare_transport(connection)


@cython.final
@cython.no_gc       # refers to nothing that could refer back
cdef class LoneLane:
    """The straight way into one magazine, as an embedded store gives it: what a load would look up, found before.

    Args:
        gate: of the store.
        log, number: where the magazine is.
        interval: what flushes the log when nobody waits for it; None = nothing does.
        sync: loads are durable with a flush only.
        calls: where ``loads`` counts them.
        claimant: owner -> the name under which a claim of its is stored, and the time now.
        expiry: a time to live in seconds -> when what is stored now ends, ms since the epoch. Raises ConfigError.
        refused: is told when there is no room for a load.

    For the thread that made it. Cannot be copied or pickled.
    """

    cdef CallGate _gate
    cdef Log _log
    cdef uint32_t _number
    cdef Interval _interval
    cdef bint _sync
    cdef dict _calls
    cdef object _claimant
    cdef object _expiry
    cdef object _refused

    def __cinit__(self, CallGate gate not None, Log log not None, number, Interval interval, bint sync, dict calls not None, claimant,
                  expiry, refused):
        self._gate = gate
        self._log = log
        self._number = <uint32_t>whole(number, "number", 0, 0xFFFFFFFF)
        self._interval = interval
        self._sync = sync
        self._calls = calls
        self._claimant = claimant
        self._expiry = expiry
        self._refused = refused

    def __reduce__(self):
        raise TypeError("a LoneLane cannot be pickled or copied")

    cdef bint _load(self, LoneRequest lone, uint16_t shards, uint16_t any_shard, uint64_t ttl_ms, taking,
                    ign_store_mark *mark) except -1:
        """Whether it is in the log, and given to who takes it, if anybody does. The caller is within the gate."""
        cdef bytes owner = None
        cdef uint64_t at_ms = 0, expires = 0
        if self._interval is not None and ign_store_interval_failures(self._interval._interval) != self._interval._told:
            return False    # a flush failed, of which a caller is to be told
        if ttl_ms != 0:
            try:
                expires = self._expiry(<double>ttl_ms / 1000)
            except _errors.ConfigError:
                return False    # the longer way names the setting
        if taking is not None:
            owner, at_ms = self._claimant(taking.owner)
        try:
            if not lone._load(self._log, self._number, shards, any_shard, expires, owner, at_ms, mark):
                return False
        except _errors.StoreFullError as exc:
            self._refused(exc)
            raise
        self._calls["loads"] += 1
        if taking is not None:
            taking.give_lone(lone)
        return True


@cython.final
cdef class LonePending:
    """The answer to a lone load that is durable with the next flush: calls `flush`, then itself with what went wrong, or None."""

    cdef LoneLane _lane
    cdef LoneLoads _loads
    cdef object _session
    cdef object _inbox
    cdef ign_store_mark _mark
    cdef int64_t _request_id
    cdef uint32_t _count
    cdef size_t _nbytes
    cdef uint8_t _frame[IGN_WIRE_ACK_FRAME_BYTES]

    def __init__(self):
        raise TypeError("LoneLoads makes these")

    cdef int _check(self) except -1:
        if self._lane is None:
            raise TypeError("LoneLoads makes these")
        return 0

    def flush(self):
        """Waits for the disk. From any thread, once. Raises StoreFailedError, StoreFullError."""
        cdef Log log
        cdef int rc
        self._check()
        log = self._lane._log
        self._lane._gate.go_in()
        try:
            log._enter()
            with nogil:
                rc = ign_store_flush(log._store, &self._mark, True)
            log._check(rc)
        finally:
            self._lane._gate.go_out()

    def __call__(self, error):
        cdef object session = self._session, transport
        self._check()
        if error is None:
            # Before anything is counted: the publisher waits for it.
            transport = None if session.flush_is_planned or self._loads._flushes.in_turn else bare_transport(session)
            if transport is None:
                session.write(PyBytes_FromStringAndSize(<const char *>self._frame, IGN_WIRE_ACK_FRAME_BYTES))
            else:
                self._loads._send(session, transport, self._frame)
            session.end_pending(1)
            self._loads._state.messages_in += self._count
        self._inbox.flushed(<Py_ssize_t>self._nbytes)
        if error is not None:
            session.refuse(self._request_id, error)


@cython.final
cdef class LoneLoads:
    """Loads what connections of one application have received alone, and answers it, where nothing is to be looked up or waited for.

    Args:
        lone: what one of them has just received.
        inboxes: by magazine; what each calls its ``lane`` is the way in, or None.
        known: by magazine, what is remembered of it now: `QueueFacts.remembered`.
        pumps: by magazine, who gives its messages to consumers.
        turn: of a shard, rising: where a message goes that names neither a shard nor a key.
        turns: the `WriteBatcher`, which flushes.
        poke: is told of a magazine that has messages.
        state, flushes, spin: the broker's.

    Belongs to the event loop. Cannot be copied or pickled.
    """

    cdef LoneRequest _lone
    cdef dict _inboxes
    cdef dict _known
    cdef dict _pumps
    cdef object _turns
    cdef object _turn
    cdef object _poke
    cdef object _state
    cdef object _flushes
    cdef LoopSpin _spin

    def __cinit__(self, LoneRequest lone not None, dict inboxes not None, dict known not None, dict pumps not None, turn, turns, poke,
                  state, flushes, LoopSpin spin not None):
        self._lone = lone
        self._inboxes = inboxes
        self._known = known
        self._pumps = pumps
        self._turn = turn
        self._turns = turns
        self._poke = poke
        self._state = state
        self._flushes = flushes
        self._spin = spin

    def __reduce__(self):
        raise TypeError("LoneLoads cannot be pickled or copied")

    def take(self, session, sender, FrameReader reader not None, Py_ssize_t size, allows) -> bool:
        """Loads what the session's connection has just received, if that is one request to load and nothing else, and its magazine
        has a lane. Who waits for its messages is given them. False when nothing was done: there is a longer way, which also says
        what is wrong.

        Args:
            sender: is told when the load is refused, see `LoneSender`.
            reader: of the connection. size: bytes that it has just received.
            allows: `Principal.allows` of who sends it; None = all that it may ask for is allowed.
        """
        cdef LoneRequest lone = self._lone
        self._spin._arrived()
        cdef object name = lone._look(reader, size), inbox, known, taking = None, pump
        cdef LoneLane lane
        cdef ign_store_mark mark
        cdef uint64_t ttl_ms
        cdef bint loaded
        cdef uint16_t shards, any_shard = 0
        if name is None:
            return False
        inbox = self._inboxes.get(name)
        if inbox is None or inbox.lane is None:
            return False
        lane = inbox.lane
        known = self._known.get(name)
        if known is None or <double>ign_now_ns() / 1e9 > <double>known.until_s:
            return False
        ttl_ms = lone._lone.ttl_ms
        if ttl_ms == OWN_TTL:
            if known.ttl_ms is None:
                return False
            ttl_ms = known.ttl_ms
        if allows is not None and not allows("SEND_BATCH" if lone._lone.command == IGN_WIRE_SEND_BATCH else "SEND", inbox.queue):
            return False
        pump = self._pumps.get(name)
        if pump is not None:
            if pump.gives:
                taking = pump.taker(lone._count, lone._lone.segment_bytes)
                if taking is None:
                    return False
        shards = known.shards
        if shards > 1 and lone._lone.shard == IGN_WIRE_ANY_SHARD:
            any_shard = <uint16_t>(<uint64_t>next(self._turn) % shards)
        if not lane._gate.try_go_in():
            return False
        try:
            loaded = lane._load(lone, shards, any_shard, ttl_ms, taking, &mark)
        except Exception as exc:
            inbox.lone_failed(lone, taking, sender, exc)
            return True
        finally:
            lane._gate.go_out()
        if loaded:
            self._loaded(session, inbox, lane, taking, name, &mark)
        return loaded

    cdef int _loaded(self, session, inbox, LoneLane lane, taking, name, ign_store_mark *mark) except -1:
        """Answers it, now or behind the flush."""
        cdef LoneRequest lone = self._lone
        cdef LonePending pending
        cdef object transport = None
        cdef uint8_t frame[IGN_WIRE_ACK_FRAME_BYTES]
        ign_wire_lone_ack(&lone._lone, frame, lone._shard, lone._first, lone._count)
        if lane._sync:
            pending = LonePending.__new__(LonePending)
            pending._lane = lane
            pending._loads = self
            pending._session = session
            pending._inbox = inbox
            pending._mark = mark[0]
            pending._request_id = lone._lone.request_id
            pending._count = lone._count
            pending._nbytes = lone._lone.segment_bytes
            memcpy(pending._frame, frame, IGN_WIRE_ACK_FRAME_BYTES)
            session.await_answer()
            inbox.bytes += <Py_ssize_t>lone._lone.segment_bytes
            self._turns.loaded(pending, pending)
        else:
            transport = bare_transport(session)
            if transport is None:
                session.write(PyBytes_FromStringAndSize(<const char *>frame, IGN_WIRE_ACK_FRAME_BYTES))
            else:
                self._send(session, transport, frame)
            self._state.messages_in += lone._count
            inbox.loads += 1
        inbox.requests += 1
        self._turns.at_once += 1
        if taking is None:
            self._poke(name)
        if transport is not None:
            self._spin._after(<int>session.fd, self._flushes, self._turns)
        return 0

    cdef int _send(self, session, transport, const uint8_t *frame) except -1:
        cdef Py_ssize_t sent = send_frame(<int>session.fd, frame, IGN_WIRE_ACK_FRAME_BYTES)
        self._state.bytes_out += IGN_WIRE_ACK_FRAME_BYTES
        if sent < IGN_WIRE_ACK_FRAME_BYTES:
            transport.write(PyBytes_FromStringAndSize(<const char *>frame + sent, IGN_WIRE_ACK_FRAME_BYTES - sent))
        return 0
