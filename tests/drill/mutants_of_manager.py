"""Faults of the connection manager by the script that shows each."""

from __future__ import annotations

from mutations import Mutation

ANSWERS, CONNECTION, MANAGER, MESSAGES = (
    "cm/answers.py",
    "cm/connection.py",
    "cm/manager.py",
    "cm/messages.py",
)

MANAGER_MUTANTS: tuple[tuple[str, Mutation], ...] = (
    (
        "cm/request-reply-ready",
        Mutation(
            "both sides begin with the PSN of one",
            CONNECTION,
            '            "sq_psn": other.starting_psn,\n',
            '            "sq_psn": own.starting_psn,\n',
        ),
    ),
    (
        "cm/no-listener",
        Mutation(
            "a service that nobody serves is refused for another reason",
            ANSWERS,
            "        return refusal(request, cm.RejectReason.INVALID_SERVICE_ID)\n",
            "        return refusal(request, cm.RejectReason.NO_RESOURCES)\n",
        ),
    ),
    (
        "cm/refused-by-the-manager",
        Mutation(
            "a path MTU that no queue pair has is taken",
            ANSWERS,
            "    if request.path_packet_payload_mtu not in MTU_BYTES:\n",
            "    if False:\n",
        ),
    ),
    (
        "cm/duplicate-request",
        Mutation(
            "a REQ that comes again is another connection",
            MANAGER,
            "        if known is not None:\n",
            "        if False:\n",
        ),
    ),
    (
        "cm/lost-ready",
        Mutation(
            "a REP is repeated after the time that the peer has for its own",
            CONNECTION,
            "duration(request.local_cm_response_timeout)",
            "duration(request.remote_cm_response_timeout)",
        ),
    ),
    (
        "cm/reply-never-answered",
        Mutation(
            "a question is repeated for ever",
            MANAGER,
            "is Wait.LINGER or not connection.retries_left:\n",
            "is Wait.LINGER:\n",
        ),
    ),
    (
        "cm/request-never-answered",
        Mutation(
            "a REQ is repeated once too often",
            CONNECTION,
            "        request.max_cm_retries,\n",
            "        request.max_cm_retries + 1,\n",
        ),
    ),
    (
        "cm/asks-itself",
        Mutation(
            "a REP that comes again is ignored",
            MANAGER,
            "            if answer.local_comm_id == connection.remote_id:\n",
            "            if False:\n",
        ),
    ),
    (
        "cm/asked-to-wait",
        Mutation(
            "the time that an MRA asks for is not given",
            MANAGER,
            "            time += duration(received.message.service_timeout)\n",
            "            time += 0\n",
        ),
    ),
    (
        "cm/waits-as-told",
        Mutation(
            "an MRA is taken for an order to ask again",
            MANAGER,
            "            time += duration(received.message.service_timeout)\n",
            "            time = duration(received.message.service_timeout)\n",
        ),
    ),
    (
        "cm/request-again",
        Mutation(
            "a REQ is repeated after the time that the peer has, without that of the way",
            CONNECTION,
            "    repetition = 2 * life + duration(",
            "    repetition = duration(",
        ),
    ),
    (
        "cm/disconnect",
        Mutation(
            "who ends a connection that is over is not answered",
            MANAGER,
            "        if isinstance(message, cm.DREQ):\n            #",
            "        if False:\n            #",
        ),
    ),
    (
        "cm/disconnects-itself",
        Mutation(
            "the last repetition is not made",
            MANAGER,
            "or not connection.retries_left:\n",
            "or connection.retries_left <= 1:\n",
        ),
    ),
    (
        "cm/both-disconnect",
        Mutation(
            "a DREP has the transaction of our own DREQ",
            MANAGER,
            "                transaction = received.transaction_id\n",
            "                transaction = connection.transaction_id\n",
        ),
    ),
    (
        "cm/is-rejected",
        Mutation(
            "the application is not told why it was refused",
            MANAGER,
            "reason, ari = message.reason, message.ari",
            "ari = message.ari",
        ),
    ),
    (
        "cm/rejected",
        Mutation(
            "the answer to a REQ has an ID that its sender has never heard of",
            ANSWERS,
            "local_comm_id=connection.local_id if has_id else 0",
            "local_comm_id=connection.local_id",
        ),
    ),
    (
        "cm/stale",
        Mutation(
            "a peer that has forgotten its connection gets a second one",
            MANAGER,
            "            if stale is not None:\n                # The",
            "            if False:\n                # The",
        ),
    ),
    (
        "cm/wrong-ids",
        Mutation(
            "the queue pair that a DREQ names is not looked at",
            MANAGER,
            "not isinstance(message, cm.DREQ) or message.remote_qpn == connection.local_qpn",
            "True",
        ),
    ),
    (
        "cm/data-before-ready",
        Mutation(
            "the first data does not stand for an RTU",
            MANAGER,
            "        if connection is not None and not connection.is_active:\n",
            "        if False:\n",
        ),
    ),
    (
        "cm/over-ipv6",
        Mutation(
            "who asks over IPv6 is not who is answered",
            "cm/qp1.py",
            "        dgid=arrival.source,\n",
            "        dgid=arrival.source if arrival.source >> 32 == 0xFFFF "
            "else arrival.destination,\n",
        ),
    ),
    (
        "cm/too-long",
        Mutation(
            "a datagram that is longer than a MAD is taken",
            MESSAGES,
            "    if len(data) != MAD_SIZE:\n",
            "    if len(data) < MAD_SIZE:\n",
        ),
    ),
    (
        "cm/damaged",
        Mutation(
            "the class version is not looked at",
            MESSAGES,
            "    if data[:4] != _KIND:\n",
            "    if data[:2] + data[3:4] != _KIND[:2] + _KIND[3:4]:\n",
        ),
    ),
)
