/* Passes over the bytes of a capture that cost most in Python: records, headers, ICRCs, fields.

   Each function has a counterpart in Python, used where this file is not compiled; tests hold the
   two to the same results. Arrays come as buffers of NumPy arrays in C order; a wrong size is a
   ValueError. What a capture holds is never trusted: every read is inside the buffer. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* Changes with the arguments of a function: `ibwire/base/native.py` compares it. */
#define FORMAT 2

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAS_CLMUL 1
#include <immintrin.h>
#endif

typedef const uint8_t *Bytes;

static uint32_t be16(Bytes at) { return (uint32_t)at[0] << 8 | at[1]; }

static uint32_t be24(Bytes at) { return (uint32_t)at[0] << 16 | be16(at + 1); }

static uint32_t be32(Bytes at) { return be16(at) << 16 | be16(at + 2); }

static uint64_t be64(Bytes at) { return (uint64_t)be32(at) << 32 | be32(at + 4); }

static uint32_t le32(Bytes at) {
    return (uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8 | at[0];
}

enum {
    ETHERNET = 1,        /* LINKTYPE_ETHERNET */
    ETHERTYPE_IPV4 = 0x0800,
    ETHERTYPE_VLAN = 0x8100,
    ETHERTYPE_IPV6 = 0x86DD,
    PROTOCOL_UDP = 17,
    ROCEV2_PORT = 4791,  /* annex A17.3.1 */
    BTH_SIZE = 12,
    ICRC_SIZE = 4,
};

/* Buffers. */

#define MOST_BUFFERS 24

typedef struct {
    Py_buffer view[MOST_BUFFERS];
    int count;
} Buffers;

static void release(Buffers *held) {
    while (held->count)
        PyBuffer_Release(&held->view[--held->count]);
}

/* The memory of an array of `count` items of `size` bytes, any number of them if it is negative;
   NULL with an error if it is of another size. */
static void *array(Buffers *held, PyObject *from, Py_ssize_t count, int size, int writable) {
    Py_buffer *view = &held->view[held->count];
    if (held->count == MOST_BUFFERS) {
        PyErr_SetString(PyExc_SystemError, "too many arrays");
        return NULL;
    }
    if (PyObject_GetBuffer(from, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return NULL;
    held->count++;
    if (count >= 0 && view->len != count * size) {
        PyErr_Format(PyExc_ValueError, "an array has %zd bytes instead of %zd", view->len,
                     count * size);
        return NULL;
    }
    return view->buf;
}

static Py_ssize_t last_size(const Buffers *held) { return held->view[held->count - 1].len; }

/* The bytes of a chunk, and which of its frames are meant. */
typedef struct {
    Bytes data;
    int64_t size;
    const int64_t *rows;
    Py_ssize_t count;
} Chosen;

static int choose(Chosen *chosen, Buffers *held, PyObject *data_of, PyObject *rows_of) {
    if (!(chosen->data = array(held, data_of, -1, 1, 0)))
        return 0;
    chosen->size = last_size(held);
    if (!(chosen->rows = array(held, rows_of, -1, 8, 0)))
        return 0;
    chosen->count = last_size(held) / 8;
    return 1;
}

/* CRC-32 of Ethernet and zlib. */

static uint32_t crc_table[16][256];

static void make_crc_table(void) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        crc_table[0][value] = crc;
    }
    for (int later = 1; later < 16; later++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = crc_table[later - 1][value];
            crc_table[later][value] = crc >> 8 ^ crc_table[0][crc & 0xFF];
        }
}

/* Sixteen bytes a step, each by the table of how many follow it. */
static uint32_t crc_by_table(uint32_t crc, Bytes data, int64_t size) {
    for (; size >= 16; size -= 16, data += 16) {
        uint8_t first[4];
        for (int at = 0; at < 4; at++)
            first[at] = data[at] ^ (uint8_t)(crc >> 8 * at);
        crc = 0;
        for (int at = 0; at < 4; at++)
            crc ^= crc_table[15 - at][first[at]];
        for (int at = 4; at < 16; at++)
            crc ^= crc_table[15 - at][data[at]];
    }
    for (; size; size--, data++)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *data) & 0xFF];
    return crc;
}

#ifdef HAS_CLMUL

/* Fold the first 128 bits into 128 bits that follow at a fixed distance: the CRC stays the same.
   Source: Gopal et al., Fast CRC Computation for Generic
   Polynomials Using PCLMULQDQ Instruction, Intel 2009. */
__attribute__((target("pclmul,sse4.1"))) static inline __m128i fold(__m128i first, __m128i powers,
                                                                   __m128i later) {
    __m128i low = _mm_clmulepi64_si128(first, powers, 0x00);
    __m128i high = _mm_clmulepi64_si128(first, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), later);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_by_folding(uint32_t crc, Bytes data,
                                                                       int64_t size) {
    /* x^(512+32) and x^(512-32), x^(128+32) and x^(128-32) modulo the polynomial, bits reversed,
       times two. */
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i part[4];
    for (int at = 0; at < 4; at++)
        part[at] = _mm_loadu_si128((const __m128i *)(data + 16 * at));
    part[0] = _mm_xor_si128(part[0], _mm_cvtsi32_si128((int)crc));
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64)
        for (int at = 0; at < 4; at++)
            part[at] = fold(part[at], by_64, _mm_loadu_si128((const __m128i *)(data + 16 * at)));
    for (int at = 1; at < 4; at++)
        part[at] = fold(part[at - 1], by_16, part[at]);
    for (; size >= 16; data += 16, size -= 16)
        part[3] = fold(part[3], by_16, _mm_loadu_si128((const __m128i *)data));
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, part[3]);
    return crc_by_table(crc_by_table(0, rest, 16), data, size);
}

#endif

/* Whether this processor multiplies without carries: a table takes ten times as long. */
static int can_fold;

static uint32_t crc_of(uint32_t crc, Bytes data, int64_t size) {
#ifdef HAS_CLMUL
    if (can_fold && size >= 64)
        return crc_by_folding(crc, data, size);
#endif
    return crc_by_table(crc, data, size);
}

PyDoc_STRVAR(crc32_doc, "crc32(data, value)\n--\n\nAs `zlib.crc32`.");

/* For tests alone. */
static PyObject *crc32(PyObject *self, PyObject *args) {
    Py_buffer data;
    unsigned int value;
    if (!PyArg_ParseTuple(args, "y*I", &data, &value))
        return NULL;
    uint32_t crc = crc_of(value ^ 0xFFFFFFFFu, data.buf, data.len) ^ 0xFFFFFFFFu;
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

/* ICRCs. */

#define MOST_MASKS 8

typedef struct {
    const int64_t *at; /* where the header starts in each frame, negative without it */
    Bytes bits;        /* pairs: offset in the header, bits that count as ones */
    Py_ssize_t count;
} Mask;

/* The CRC of bytes in which the masked bits of one frame are ones. */
static int masked_crc(uint32_t *crc, Bytes data, int64_t start, int64_t end, const Mask *masks,
                      Py_ssize_t count, Py_ssize_t row) {
    uint8_t near[256], *copy = near;
    int64_t until = start;
    for (Py_ssize_t each = 0; each < count; each++) {
        int64_t at = masks[each].at[row];
        for (Py_ssize_t bit = 0; at >= start && bit < masks[each].count; bit++) {
            int64_t place = at + masks[each].bits[2 * bit];
            if (place < end && place >= until)
                until = place + 1;
        }
    }
    int64_t size = until - start;
    if (size > (int64_t)sizeof near && !(copy = PyMem_Malloc(size))) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(copy, data + start, size);
    for (Py_ssize_t each = 0; each < count; each++) {
        int64_t at = masks[each].at[row];
        for (Py_ssize_t bit = 0; at >= start && bit < masks[each].count; bit++) {
            int64_t place = at + masks[each].bits[2 * bit];
            if (place < end)
                copy[place - start] |= masks[each].bits[2 * bit + 1];
        }
    }
    *crc = crc_of(crc_of(*crc, copy, size), data + until, end - until);
    if (copy != near)
        PyMem_Free(copy);
    return 0;
}

PyDoc_STRVAR(icrcs_doc, "icrcs(data, rows, start, end, seeds, masks, out)\n--\n\n"
                        "See `ibwire.dissect.icrc._computed`.");

static PyObject *icrcs(PyObject *self, PyObject *args) {
    PyObject *data_of, *rows_of, *start_of, *end_of, *seeds_of, *masks_of, *out_of, *done = NULL;
    Buffers held = {.count = 0};
    Mask masks[MOST_MASKS];
    if (!PyArg_ParseTuple(args, "OOOOOO!O", &data_of, &rows_of, &start_of, &end_of, &seeds_of,
                          &PyTuple_Type, &masks_of, &out_of))
        return NULL;
    Py_ssize_t kinds = PyTuple_GET_SIZE(masks_of);
    Chosen in;
    if (!choose(&in, &held, data_of, rows_of))
        goto end;
    const int64_t *start = array(&held, start_of, -1, 8, 0);
    if (!start)
        goto end;
    Py_ssize_t frames = last_size(&held) / 8;
    const int64_t *end;
    const uint32_t *seeds;
    uint32_t *out;
    if (!(end = array(&held, end_of, frames, 8, 0)) ||
        !(seeds = array(&held, seeds_of, in.count, 4, 0)) ||
        !(out = array(&held, out_of, in.count, 4, 1)))
        goto end;
    if (kinds > MOST_MASKS) {
        PyErr_SetString(PyExc_ValueError, "too many masks");
        goto end;
    }
    for (Py_ssize_t each = 0; each < kinds; each++) {
        PyObject *at_of, *bits_of;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(masks_of, each), "OO", &at_of, &bits_of))
            goto end;
        if (!(masks[each].at = array(&held, at_of, frames, 8, 0)) ||
            !(masks[each].bits = array(&held, bits_of, -1, 1, 0)))
            goto end;
        masks[each].count = last_size(&held) / 2;
    }
    for (Py_ssize_t each = 0; each < in.count; each++) {
        int64_t row = in.rows[each];
        if (row < 0 || row >= frames || start[row] < 0 || start[row] > end[row] - ICRC_SIZE ||
            end[row] > in.size) {
            PyErr_SetString(PyExc_ValueError, "a frame lies outside the buffer");
            goto end;
        }
        uint32_t crc = seeds[each] ^ 0xFFFFFFFFu;
        if (masked_crc(&crc, in.data, start[row], end[row] - ICRC_SIZE, masks, kinds, row) < 0)
            goto end;
        out[each] = crc ^ 0xFFFFFFFFu;
    }
    done = Py_NewRef(Py_None);
end:
    release(&held);
    return done;
}

/* Records of pcap. */

PyDoc_STRVAR(record_starts_doc, "record_starts(data, first, step, big, ordered, out)\n--\n\n"
                                "See `ibwire.capture.pcap.PcapParser._walk`.");

static PyObject *record_starts(PyObject *self, PyObject *args) {
    PyObject *data_of, *out_of, *done = NULL;
    Buffers held = {.count = 0};
    long long position;
    int step, big, ordered;
    if (!PyArg_ParseTuple(args, "OLippO", &data_of, &position, &step, &big, &ordered, &out_of))
        return NULL;
    Bytes data = array(&held, data_of, -1, 1, 0);
    if (!data)
        goto end;
    int64_t last = last_size(&held) - step;
    int64_t *out = array(&held, out_of, -1, 8, 1);
    if (!out)
        goto end;
    Py_ssize_t most = last_size(&held) / 8, count = 0;
    if (position < 0 || step < 16) {
        PyErr_SetString(PyExc_ValueError, "a record header has 16 bytes or more");
        goto end;
    }
    while (position <= last && count < most) {
        Bytes lengths = data + position + 8;
        uint32_t length = big ? be32(lengths) : le32(lengths);
        uint32_t other = big ? be32(lengths + 4) : le32(lengths + 4);
        out[count++] = position;
        position += (ordered || length < other ? length : other) + (int64_t)step;
    }
    done = PyLong_FromSsize_t(count);
end:
    release(&held);
    return done;
}

/* Headers of frames. */

/* Where the headers of a frame start, negative without them. */
typedef struct {
    int64_t vlan, ipv4, ipv6, udp, bth, end;
} Plain;

/* Whether a frame is RoCEv2 over Ethernet, with at most one VLAN tag, no tunnel and no fault. */
static int is_plain(Plain *found, Bytes data, int64_t at, int64_t limit,
                    const int64_t *header_size) {
    if (at + 14 > limit)
        return 0;
    uint32_t type = be16(data + at + 12);
    at += 14;
    found->vlan = found->ipv4 = found->ipv6 = -1;
    if (type == ETHERTYPE_VLAN) {
        if (at + 4 > limit)
            return 0;
        found->vlan = at;
        type = be16(data + at + 2);
        at += 4;
    }
    if (type == ETHERTYPE_IPV4) {
        if (at + 20 > limit || data[at] >> 4 != 4)
            return 0;
        int64_t size = (data[at] & 0xF) * 4, total = be16(data + at + 2);
        int is_fragment = (be16(data + at + 6) & 0x3FFF) != 0;
        if (size < 20 || at + size > limit || is_fragment || data[at + 9] != PROTOCOL_UDP)
            return 0;
        found->ipv4 = at;
        found->end = at + total;
        at += size;
    } else if (type == ETHERTYPE_IPV6) {
        if (at + 40 > limit || data[at] >> 4 != 6 || data[at + 6] != PROTOCOL_UDP)
            return 0;
        found->ipv6 = at;
        found->end = at + 40 + be16(data + at + 4);
        at += 40;
    } else
        return 0;
    int64_t end = found->end;
    if (at + 8 > limit || be16(data + at + 2) != ROCEV2_PORT ||
        be16(data + at + 4) != end - at)
        return 0;
    found->udp = at;
    found->bth = at += 8;
    if (at + BTH_SIZE > limit)
        return 0;
    int64_t size = header_size[data[at]];
    int64_t room = end - ICRC_SIZE - at - size, pad = data[at + 1] >> 4 & 3;
    return size > 0 && room >= pad && at + size <= limit;
}

PyDoc_STRVAR(plain_frames_doc,
             "plain_frames(data, offsets, limits, link_types, header_size, protocol_number, start, "
             "end, protocol, has_icrc, ethernet, vlan, ipv4, ipv6, udp, bth, done)\n--\n\n"
             "See `ibwire.dissect.frames.Frames._walk`.");

static PyObject *plain_frames(PyObject *self, PyObject *args) {
    PyObject *of[16], *done = NULL;
    Buffers held = {.count = 0};
    int number;
    if (!PyArg_ParseTuple(args, "OOOOOiOOOOOOOOOOO", &of[0], &of[1], &of[2], &of[3], &of[4],
                          &number, &of[5], &of[6], &of[7], &of[8], &of[9], &of[10], &of[11],
                          &of[12], &of[13], &of[14], &of[15]))
        return NULL;
    Bytes data = array(&held, of[0], -1, 1, 0);
    if (!data)
        goto end;
    int64_t size = last_size(&held);
    const int64_t *offsets = array(&held, of[1], -1, 8, 0);
    if (!offsets)
        goto end;
    Py_ssize_t count = last_size(&held) / 8;
    const int64_t *limits, *header_size;
    const uint16_t *link_types;
    uint8_t *protocol, *has_icrc, *is_done;
    int64_t *start, *end, *ethernet, *vlan, *ipv4, *ipv6, *udp, *bth;
    if (!(limits = array(&held, of[2], count, 8, 0)) ||
        !(link_types = array(&held, of[3], count, 2, 0)) ||
        !(header_size = array(&held, of[4], 256, 8, 0)) ||
        !(start = array(&held, of[5], count, 8, 1)) || !(end = array(&held, of[6], count, 8, 1)) ||
        !(protocol = array(&held, of[7], count, 1, 1)) ||
        !(has_icrc = array(&held, of[8], count, 1, 1)) ||
        !(ethernet = array(&held, of[9], count, 8, 1)) ||
        !(vlan = array(&held, of[10], count, 8, 1)) ||
        !(ipv4 = array(&held, of[11], count, 8, 1)) ||
        !(ipv6 = array(&held, of[12], count, 8, 1)) ||
        !(udp = array(&held, of[13], count, 8, 1)) || !(bth = array(&held, of[14], count, 8, 1)) ||
        !(is_done = array(&held, of[15], count, 1, 1)))
        goto end;
    for (Py_ssize_t row = 0; row < count; row++) {
        int64_t at = offsets[row];
        Plain found;
        if (at < 0 || limits[row] > size || link_types[row] != ETHERNET ||
            !is_plain(&found, data, at, limits[row], header_size))
            continue;
        ethernet[row] = at;
        vlan[row] = found.vlan;
        ipv4[row] = found.ipv4;
        ipv6[row] = found.ipv6;
        udp[row] = found.udp;
        bth[row] = found.bth;
        start[row] = found.ipv4 < 0 ? found.ipv6 : found.ipv4;
        end[row] = found.end;
        protocol[row] = (uint8_t)number;
        has_icrc[row] = is_done[row] = 1;
    }
    done = Py_NewRef(Py_None);
end:
    release(&held);
    return done;
}

/* Fields of packets. */

/* Where the addresses of a header begin, how many words of 32 bits they are, and the bits of these
   that count: of the LRH all words, without lanes and lengths. */
static const struct {
    int offset, words;
    uint32_t bits;
} ADDRESSES[] = {{12, 2, 0xFFFFFFFF}, {8, 8, 0xFFFFFFFF}, {8, 8, 0xFFFFFFFF}, {0, 2, 0xFFFF}};

PyDoc_STRVAR(flow_hashes_doc,
             "flow_hashes(data, rows, services, factors, bth, deth, ipv4, ipv6, grh, lrh, out)\n"
             "--\n\nSee `ibwire.connections.flow._hashes`.");

static PyObject *flow_hashes(PyObject *self, PyObject *args) {
    PyObject *of[11], *done = NULL;
    Buffers held = {.count = 0};
    const int64_t *bth, *deth, *headers[4];
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOO", &of[0], &of[1], &of[2], &of[3], &of[4], &of[5],
                          &of[6], &of[7], &of[8], &of[9], &of[10]))
        return NULL;
    Chosen in;
    if (!choose(&in, &held, of[0], of[1]))
        goto end;
    Bytes data = in.data;
    int64_t size = in.size;
    const uint64_t *services = array(&held, of[2], 256, 8, 0);
    const uint64_t *factors = services ? array(&held, of[3], 10, 8, 0) : NULL;
    if (!factors || !(bth = array(&held, of[4], -1, 8, 0)))
        goto end;
    Py_ssize_t frames = last_size(&held) / 8;
    if (!(deth = array(&held, of[5], frames, 8, 0)))
        goto end;
    for (int kind = 0; kind < 4; kind++)
        if (!(headers[kind] = array(&held, of[6 + kind], frames, 8, 0)))
            goto end;
    uint64_t *out = array(&held, of[10], in.count, 8, 1);
    if (!out)
        goto end;
    for (Py_ssize_t each = 0; each < in.count; each++) {
        int64_t row = in.rows[each];
        if (row < 0 || row >= frames || bth[row] < 0 || bth[row] + BTH_SIZE > size) {
            PyErr_SetString(PyExc_ValueError, "a packet lies outside the buffer");
            goto end;
        }
        Bytes packet = data + bth[row];
        uint64_t value = ((uint64_t)be24(packet + 5) << 8 | services[packet[0]]) * factors[0];
        if (deth[row] >= 0 && deth[row] + 8 <= size)
            value += be24(data + deth[row] + 5) * factors[1];
        for (int kind = 0; kind < 4; kind++) {
            int64_t at = headers[kind][row] + ADDRESSES[kind].offset;
            if (headers[kind][row] < 0 || at + 4 * ADDRESSES[kind].words > size)
                continue;
            for (int word = 0; word < ADDRESSES[kind].words; word++)
                value += (be32(data + at + 4 * word) & ADDRESSES[kind].bits) * factors[2 + word];
            break; /* only what `addresses` reads: one hash a key */
        }
        out[each] = value ^ value >> 31;
    }
    done = Py_NewRef(Py_None);
end:
    release(&held);
    return done;
}

/* One row of `ibwire.connections.packets.ROW`. */
typedef struct {
    int64_t number, time_ns;
    uint64_t va;
    int32_t flow;
    uint32_t psn, length, size, dma_len, rkey, msn, icrc;
    int32_t ip_id;
    int16_t syndrome;
    uint16_t port, file;
    uint8_t opcode, ack_req, marked, damaged;
} Row;

/* The rows are of packets with a known opcode and whole headers. */
PyDoc_STRVAR(read_packets_doc,
             "read_packets(data, rows, flow, first_number, time_ns, wire_len, limits, end, "
             "has_icrc, bth, ipv4, ipv6, udp, header_size, reth, atomic, aeth, out)\n--\n\n"
             "See `ibwire.connections.packets.read`.");

static PyObject *read_packets(PyObject *self, PyObject *args) {
    PyObject *of[17], *done = NULL;
    Buffers held = {.count = 0};
    long long first_number;
    if (!PyArg_ParseTuple(args, "OOOLOOOOOOOOOOOOOO", &of[0], &of[1], &of[2], &first_number, &of[3],
                          &of[4], &of[5], &of[6], &of[7], &of[8], &of[9], &of[10], &of[11],
                          &of[12], &of[13], &of[14], &of[15], &of[16]))
        return NULL;
    Chosen in;
    if (!choose(&in, &held, of[0], of[1]))
        goto end;
    Bytes data = in.data;
    int64_t size = in.size;
    const int32_t *flow = array(&held, of[2], in.count, 4, 0);
    const int64_t *time_ns = flow ? array(&held, of[3], -1, 8, 0) : NULL;
    if (!time_ns)
        goto end;
    Py_ssize_t frames = last_size(&held) / 8;
    const int64_t *wire_len, *limits, *end, *bth, *ipv4, *ipv6, *udp;
    const int64_t *header_size, *reth, *atomic, *aeth;
    const uint8_t *has_icrc;
    Row *out;
    if (!(wire_len = array(&held, of[4], frames, 8, 0)) ||
        !(limits = array(&held, of[5], frames, 8, 0)) ||
        !(end = array(&held, of[6], frames, 8, 0)) ||
        !(has_icrc = array(&held, of[7], frames, 1, 0)) ||
        !(bth = array(&held, of[8], frames, 8, 0)) ||
        !(ipv4 = array(&held, of[9], frames, 8, 0)) ||
        !(ipv6 = array(&held, of[10], frames, 8, 0)) ||
        !(udp = array(&held, of[11], frames, 8, 0)) ||
        !(header_size = array(&held, of[12], 256, 8, 0)) ||
        !(reth = array(&held, of[13], 256, 8, 0)) || !(atomic = array(&held, of[14], 256, 8, 0)) ||
        !(aeth = array(&held, of[15], 256, 8, 0)) ||
        !(out = array(&held, of[16], in.count, sizeof(Row), 1)))
        goto end;
    memset(out, 0, in.count * sizeof(Row));
    for (Py_ssize_t each = 0; each < in.count; each++, out++) {
        int64_t row = in.rows[each];
        if (row < 0 || row >= frames || limits[row] > size || bth[row] < 0 ||
            bth[row] + BTH_SIZE > limits[row]) {
            PyErr_SetString(PyExc_ValueError, "a packet lies outside the buffer");
            goto end;
        }
        Bytes packet = data + bth[row];
        uint8_t opcode = packet[0];
        int64_t payload = bth[row] + header_size[opcode];
        int64_t length = end[row] - (has_icrc[row] ? ICRC_SIZE : 0) - payload;
        if (!header_size[opcode] || payload > limits[row] || length < (packet[1] >> 4 & 3)) {
            PyErr_SetString(PyExc_ValueError, "a packet does not have all of its headers");
            goto end;
        }
        out->number = row + first_number;
        out->time_ns = time_ns[row];
        out->flow = flow[each];
        out->opcode = opcode;
        out->psn = be24(packet + 9);
        out->ack_req = packet[8] >> 7;
        out->length = (uint32_t)wire_len[row];
        out->size = (uint32_t)(length - (packet[1] >> 4 & 3));
        if (reth[opcode] >= 0) {
            out->va = be64(packet + reth[opcode]);
            out->rkey = be32(packet + reth[opcode] + 8);
            out->dma_len = be32(packet + reth[opcode] + 12);
        }
        if (atomic[opcode] >= 0) {
            out->va |= be64(packet + atomic[opcode]);
            out->rkey |= be32(packet + atomic[opcode] + 8);
        }
        out->syndrome = -1;
        if (aeth[opcode] >= 0) {
            out->syndrome = packet[aeth[opcode]];
            out->msn = be24(packet + aeth[opcode] + 1);
        }
        out->ip_id = -1;
        uint32_t ecn = 0;
        if (ipv4[row] >= 0 && ipv4[row] + 20 <= size) {
            out->ip_id = (int32_t)be16(data + ipv4[row] + 4);
            ecn = data[ipv4[row] + 1] & 3;
        }
        if (ipv6[row] >= 0 && ipv6[row] + 40 <= size)
            ecn |= data[ipv6[row] + 1] >> 4 & 3;
        out->marked = ecn == 3;
        if (udp[row] >= 0 && udp[row] + 8 <= size)
            out->port = (uint16_t)be16(data + udp[row]);
        if (has_icrc[row] && end[row] <= limits[row] && end[row] >= ICRC_SIZE)
            out->icrc = be32(data + end[row] - ICRC_SIZE);
    }
    done = Py_NewRef(Py_None);
end:
    release(&held);
    return done;
}

/* What rules about single packets look at. */

/* `ibwire.rules.aspects.Aspect` and its `_Kind` have the same numbers. */
enum {
    SIZE = 1 << 0,
    PAD_BYTES = 1 << 1,
    VERSION = 1 << 2,
    RESERVED = 1 << 3,
    BYTE_4 = 1 << 4,
    MIG_REQ = 1 << 5,
    P_KEY = 1 << 6,
    SOLICITED = 1 << 7,
    DEST_QP = 1 << 8,
    UDP_PORT = 1 << 9,
    EXTENSION = 1 << 10,
    ACK_REQ = 1 << 11,
    SYNDROME = 1 << 12,
    ADDRESS = 1 << 13,
    FORM_OF_CNP = 1 << 14,
    BECN = 1 << 15,
    HOP_LIMIT = 1 << 16,
    Q_KEY = 1 << 17,
    IP_CHECKSUM = 1 << 18,
    UDP_CHECKSUM = 1 << 19,
    ALL_ASPECTS = (1 << 20) - 1,
};

enum {
    IS_EMPTY = 1 << 0,
    IS_FULL = 1 << 1,
    NOT_EMPTY = 1 << 2,
    UP_TO_MTU = 1 << 3,
    IS_EIGHT = 1 << 4,
    WHOLE_WRITE = 1 << 5,
    CONNECTED = 1 << 6,
    MAY_SOLICIT = 1 << 7,
    MAY_ASK = 1 << 8,
    HAS_DATA = 1 << 9,
    IS_CNP = 1 << 10,
    IS_DATAGRAM = 1 << 11,
    IS_RARE = 1 << 12,
};

#define LEAST_MTU 256
#define LARGEST_MTU 4096

/* Whether the header checksum of IPv4 is wrong, of a header inside the buffer (RFC 1071). */
static int is_wrong_sum(Bytes at) {
    uint32_t sum = 0;
    for (int word = 0; word < 2 * (at[0] & 0xF); word++)
        sum += be16(at + 2 * word);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return (sum & 0xFFFF) + (sum >> 16) != 0xFFFF;
}

/* Aspects of the BTH. */
static uint32_t odd_transport_header(Bytes bth, uint32_t kind) {
    uint32_t odd = 0, target = be24(bth + 5);
    int is_other = !(kind & IS_CNP);
    if (bth[1] & 0x0F)
        odd |= VERSION;
    if (bth[8] & 0x7F)
        odd |= RESERVED;
    if (bth[4] & 0x3F)
        odd |= BYTE_4;
    if (bth[4] & 0x40 && is_other)
        odd |= BECN;
    if (kind & CONNECTED && !(bth[1] & 0x40))
        odd |= MIG_REQ;
    if (!(be16(bth + 2) & 0x7FFF) && is_other)
        odd |= P_KEY;
    if (bth[1] & 0x80 && is_other && !(kind & MAY_SOLICIT))
        odd |= SOLICITED;
    if (bth[8] & 0x80 && is_other && !(kind & MAY_ASK))
        odd |= ACK_REQ;
    if (kind & CONNECTED && (target <= 1 || target == 0xFFFFFF))
        odd |= DEST_QP;
    if (kind & IS_DATAGRAM && target == 1)
        odd |= Q_KEY;
    if (!is_other)
        odd |= FORM_OF_CNP;
    return odd;
}

/* Aspects of what follows it. size: bytes of payload; reth, atomic, aeth: offsets of these headers
   in the packet, negative without. */
static uint32_t odd_rest(Bytes bth, uint32_t kind, int64_t size, int64_t reth, int64_t atomic,
                         int64_t aeth) {
    uint32_t odd = 0;
    int is_mtu = size >= LEAST_MTU && size <= LARGEST_MTU && !(size & (size - 1));
    if ((kind & IS_EMPTY && size) || (kind & IS_FULL && !is_mtu) || (kind & NOT_EMPTY && !size) ||
        (kind & UP_TO_MTU && size > LARGEST_MTU) || (size + (bth[1] >> 4 & 3)) & 3)
        odd |= SIZE;
    if (reth >= 0) {
        uint32_t length = be32(bth + reth + 12);
        if (length > 0x80000000u || (kind & WHOLE_WRITE && size != length) ||
            (kind & IS_EIGHT && (size != 8 || length != 8)))
            odd |= SIZE;
        if (kind & IS_EIGHT && bth[reth + 7] & 7)
            odd |= ADDRESS;
    } else if (kind & IS_EIGHT)
        odd |= SIZE;
    if (atomic >= 0 && bth[atomic + 7] & 7)
        odd |= ADDRESS;
    if (aeth >= 0) {
        uint32_t syndrome = bth[aeth], what = syndrome >> 5;
        if (what > 3 || what == 2 || (what == 3 && (syndrome & 0x1F) > 3) ||
            (what && kind & HAS_DATA))
            odd |= SYNDROME;
    }
    if (kind & IS_DATAGRAM && bth[BTH_SIZE + 4])
        odd |= EXTENSION;
    return odd;
}

PyDoc_STRVAR(unusual_aspects_doc,
             "unusual_aspects(data, rows, limits, end, has_icrc, bth, ipv4, ipv6, udp, "
             "header_size, kinds, reth, atomic, aeth)\n--\n\n"
             "See `ibwire.rules.aspects.unusual`.");

static PyObject *unusual_aspects(PyObject *self, PyObject *args) {
    PyObject *of[14], *done = NULL;
    Buffers held = {.count = 0};
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOOO", &of[0], &of[1], &of[2], &of[3], &of[4], &of[5],
                          &of[6], &of[7], &of[8], &of[9], &of[10], &of[11], &of[12], &of[13]))
        return NULL;
    Chosen in;
    if (!choose(&in, &held, of[0], of[1]))
        goto end;
    Bytes data = in.data;
    const int64_t *limits = array(&held, of[2], -1, 8, 0);
    if (!limits)
        goto end;
    Py_ssize_t frames = last_size(&held) / 8;
    const int64_t *end, *bth, *ipv4, *ipv6, *udp, *header_size, *reth, *atomic, *aeth;
    const uint8_t *has_icrc;
    const uint32_t *kinds;
    if (!(end = array(&held, of[3], frames, 8, 0)) ||
        !(has_icrc = array(&held, of[4], frames, 1, 0)) ||
        !(bth = array(&held, of[5], frames, 8, 0)) ||
        !(ipv4 = array(&held, of[6], frames, 8, 0)) ||
        !(ipv6 = array(&held, of[7], frames, 8, 0)) ||
        !(udp = array(&held, of[8], frames, 8, 0)) ||
        !(header_size = array(&held, of[9], 256, 8, 0)) ||
        !(kinds = array(&held, of[10], 256, 4, 0)) || !(reth = array(&held, of[11], 256, 8, 0)) ||
        !(atomic = array(&held, of[12], 256, 8, 0)) || !(aeth = array(&held, of[13], 256, 8, 0)))
        goto end;
    uint32_t odd = 0;
    for (Py_ssize_t each = 0; each < in.count; each++) {
        int64_t row = in.rows[each];
        if (row < 0 || row >= frames || limits[row] > in.size || bth[row] < 0 ||
            bth[row] + BTH_SIZE > limits[row]) {
            PyErr_SetString(PyExc_ValueError, "a packet lies outside the buffer");
            goto end;
        }
        Bytes packet = data + bth[row];
        uint8_t opcode = packet[0], pad = packet[1] >> 4 & 3;
        uint32_t kind = kinds[opcode];
        int64_t payload = bth[row] + header_size[opcode], limit = limits[row];
        int64_t behind = end[row] - (has_icrc[row] ? ICRC_SIZE : 0);
        if (!header_size[opcode] || payload > limit || behind < payload + pad || kind & IS_RARE) {
            odd = ALL_ASPECTS;
            break;
        }
        odd |= odd_transport_header(packet, kind);
        odd |= odd_rest(packet, kind, behind - payload - pad, reth[opcode], atomic[opcode],
                        aeth[opcode]);
        for (int back = 1; back <= pad && behind <= limit; back++)
            if (data[behind - back])
                odd |= PAD_BYTES;
        int64_t at = ipv4[row];
        if (at >= 0) {
            if (at + 20 > limit || at + 4 * (data[at] & 0xF) > limit || is_wrong_sum(data + at))
                odd |= IP_CHECKSUM;
            if (at + 20 > limit || !data[at + 8])
                odd |= HOP_LIMIT;
        }
        at = ipv6[row];
        if (at >= 0 && (at + 40 > limit || !data[at + 7]))
            odd |= HOP_LIMIT;
        at = udp[row];
        if (at >= 0 && (at + 8 > limit || be16(data + at + 2) != ROCEV2_PORT))
            odd |= UDP_PORT;
        if (at >= 0 && (at + 8 > limit || be16(data + at + 6)))
            odd |= UDP_CHECKSUM;
    }
    done = PyLong_FromUnsignedLong(odd);
end:
    release(&held);
    return done;
}

PyDoc_STRVAR(packets_doc, "packets(rows, type)\n--\n\n"
                          "See `packets` of `ibwire.connections.packets.Rows`.");

#define FIELDS 19

static PyObject *packet_of(const Row *row, PyTypeObject *type) {
    PyObject *packet = type->tp_alloc(type, FIELDS);
    if (!packet)
        return NULL;
#if PY_VERSION_HEX >= 0x030E0000
    ((PyTupleObject *)packet)->ob_hash = -1; /* not known yet */
#endif
    PyObject *fields[] = {
        PyLong_FromLongLong(row->number),
        PyLong_FromLongLong(row->time_ns),
        PyLong_FromUnsignedLongLong(row->va),
        PyLong_FromLong(row->flow),
        PyLong_FromUnsignedLong(row->psn),
        PyLong_FromUnsignedLong(row->length),
        PyLong_FromUnsignedLong(row->size),
        PyLong_FromUnsignedLong(row->dma_len),
        PyLong_FromUnsignedLong(row->rkey),
        PyLong_FromUnsignedLong(row->msn),
        PyLong_FromUnsignedLong(row->icrc),
        PyLong_FromLong(row->ip_id),
        PyLong_FromLong(row->syndrome),
        PyLong_FromLong(row->port),
        PyLong_FromLong(row->file),
        PyLong_FromLong(row->opcode),
        PyBool_FromLong(row->ack_req),
        PyBool_FromLong(row->marked),
        PyBool_FromLong(row->damaged),
    };
    int is_whole = 1;
    for (int at = 0; at < FIELDS; at++) {
        is_whole &= fields[at] != NULL;
        PyTuple_SET_ITEM(packet, at, fields[at]);
    }
    if (!is_whole)
        Py_CLEAR(packet);
    return packet;
}

static PyObject *packets(PyObject *self, PyObject *args) {
    PyObject *rows_of, *found = NULL;
    PyTypeObject *type;
    Buffers held = {.count = 0};
    if (!PyArg_ParseTuple(args, "OO!", &rows_of, &PyType_Type, &type))
        return NULL;
    if (!PyType_IsSubtype(type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "packets are tuples");
        return NULL;
    }
    const Row *rows = array(&held, rows_of, -1, 1, 0);
    if (!rows)
        goto end;
    Py_ssize_t count = last_size(&held) / sizeof(Row);
    if (last_size(&held) % sizeof(Row)) {
        PyErr_SetString(PyExc_ValueError, "an array does not hold whole rows");
        goto end;
    }
    if ((found = PyList_New(count)))
        for (Py_ssize_t each = 0; each < count; each++) {
            PyObject *packet = packet_of(&rows[each], type);
            if (!packet) {
                Py_CLEAR(found);
                goto end;
            }
            PyList_SET_ITEM(found, each, packet);
        }
end:
    release(&held);
    return found;
}

static PyMethodDef functions[] = {
    {"crc32", crc32, METH_VARARGS, crc32_doc},
    {"icrcs", icrcs, METH_VARARGS, icrcs_doc},
    {"record_starts", record_starts, METH_VARARGS, record_starts_doc},
    {"plain_frames", plain_frames, METH_VARARGS, plain_frames_doc},
    {"flow_hashes", flow_hashes, METH_VARARGS, flow_hashes_doc},
    {"packets", packets, METH_VARARGS, packets_doc},
    {"read_packets", read_packets, METH_VARARGS, read_packets_doc},
    {"unusual_aspects", unusual_aspects, METH_VARARGS, unusual_aspects_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Passes over the bytes of a capture.",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void) {
    make_crc_table();
#ifdef HAS_CLMUL
    can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
    PyObject *made = PyModule_Create(&module);
    if (made && (PyModule_AddIntConstant(made, "FORMAT", FORMAT) < 0 ||
                 PyModule_AddIntConstant(made, "CAN_FOLD", can_fold) < 0))
        Py_CLEAR(made);
    return made;
}
