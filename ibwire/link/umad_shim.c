/* Lets programs that use libibumad reach an emulated fabric: preloaded, it turns each open of
 * /dev/infiniband/umadN and issmN into a connection to the fabric, and reads the files under
 * /sys/class/infiniband from a folder.
 *
 * IBWIRE_FABRIC: path of the socket of the fabric. IBWIRE_HOST: name of the host in it.
 * IBWIRE_ROOT: folder with the host's sys/class.
 *
 * The connection is a stream of messages. Each has four bytes before it, a little-endian number:
 * its length, and in the uppermost byte its kind. Kind 0 is one MAD with its header (struct
 * ib_user_mad); 1 is the name of a file that holds such a message, as it is too long.
 * What the descriptor itself can do (poll, select, epoll) stays the system's.
 *
 * The system adds no more than 32 KiB to a stream at once, so threads may write at the same time as
 * long as no message is longer. They read one after the other, as the length comes first.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { HELLO = 0x69627731, INLINE = 0, FILED = 1, REGISTER = 2, UNREGISTER = 3 };
enum { MOST_FILES = 4096, MOST_AGENTS = 32, HEADER = 64, LEAST = 36, LONGEST = 32000 };
enum { ROOM = 1 << 18 };

struct hello { uint32_t magic, kind, number, flags; char host[112]; };
struct request { uint32_t word; unsigned char body[44]; };

#define WORD(kind, size) ((uint32_t)(kind) << 24 | (uint32_t)(size))

/* For each of our descriptors: 1 umad, 2 issm, and the agent numbers in use. */
static unsigned char ours[MOST_FILES];
static uint32_t agents[MOST_FILES];

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static const char *moved(const char *path, char *room, size_t size) {
    const char *root = getenv("IBWIRE_ROOT");
    if (!path || !root) return path;
    if (strncmp(path, "/sys/class/infiniband", 21) && strncmp(path, "/dev/infiniband", 15)) return path;
    if ((size_t)snprintf(room, size, "%s%s", root, path) >= size) return path;
    return room;
}
#define MOVED(path) char room_[4352]; const char *to = moved(path, room_, sizeof room_)

static int connected(int kind, unsigned number, int flags) {
    const char *path = getenv("IBWIRE_FABRIC"), *host = getenv("IBWIRE_HOST");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct hello hello = {HELLO, (uint32_t)kind, number, (uint32_t)flags, {0}};
    int32_t answer = 0;
    if (!path || !host || strlen(path) >= sizeof address.sun_path || strlen(host) >= sizeof hello.host) {
        errno = ENODEV;
        return -1;
    }
    strcpy(address.sun_path, path);
    strcpy(hello.host, host);
    int room = ROOM;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    if (fd >= MOST_FILES) { errno = EMFILE; goto failed; }
    int error;
    do error = connect(fd, (struct sockaddr *)&address, sizeof address);
    while (error && errno == EINTR);
    ssize_t got = -1;
    if (!error && send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) {
        do got = recv(fd, &answer, sizeof answer, MSG_WAITALL);
        while (got < 0 && errno == EINTR);
    }
    if (got != sizeof answer) { errno = ENODEV; goto failed; }
    if (answer) { errno = answer; goto failed; }
    if (flags & O_NONBLOCK) fcntl(fd, F_SETFL, O_NONBLOCK);
    ours[fd] = (unsigned char)kind;
    agents[fd] = 0;
    return fd;
failed:;
    int kept = errno;
    REAL(int, "close", int);
    real(fd);
    errno = kept;
    return -1;
}

static int device(const char *path, int flags) {
    unsigned number;
    char rest;
    if (!path || strncmp(path, "/dev/infiniband/", 16)) return -2;
    if (sscanf(path, "/dev/infiniband/umad%u%c", &number, &rest) == 1) return connected(1, number, flags);
    if (sscanf(path, "/dev/infiniband/issm%u%c", &number, &rest) == 1) return connected(2, number, flags);
    return -2;
}

#define OPEN(function, symbol) \
    int function(const char *path, int flags, ...) { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); \
        } \
        int fd = device(path, flags); \
        if (fd != -2) return fd; \
        MOVED(path); \
        REAL(int, symbol, const char *, int, ...); \
        return real(to, flags, mode); \
    }
OPEN(open, "open")
OPEN(open64, "open64")

#define OPENAT(function, symbol) \
    int function(int at, const char *path, int flags, ...) { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); \
        } \
        int fd = device(path, flags); \
        if (fd != -2) return fd; \
        MOVED(path); \
        REAL(int, symbol, int, const char *, int, ...); \
        return real(at, to, flags, mode); \
    }
OPENAT(openat, "openat")
OPENAT(openat64, "openat64")

int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }

FILE *fopen(const char *path, const char *mode) {
    MOVED(path); REAL(FILE *, "fopen", const char *, const char *); return real(to, mode);
}
FILE *fopen64(const char *path, const char *mode) {
    MOVED(path); REAL(FILE *, "fopen64", const char *, const char *); return real(to, mode);
}
DIR *opendir(const char *path) {
    MOVED(path); REAL(DIR *, "opendir", const char *); return real(to);
}
int scandir(const char *path, struct dirent ***names, int (*filter)(const struct dirent *),
            int (*compare)(const struct dirent **, const struct dirent **)) {
    MOVED(path);
    REAL(int, "scandir", const char *, struct dirent ***, int (*)(const struct dirent *),
         int (*)(const struct dirent **, const struct dirent **));
    return real(to, names, filter, compare);
}
int scandir64(const char *path, struct dirent64 ***names, int (*filter)(const struct dirent64 *),
              int (*compare)(const struct dirent64 **, const struct dirent64 **)) {
    MOVED(path);
    REAL(int, "scandir64", const char *, struct dirent64 ***, int (*)(const struct dirent64 *),
         int (*)(const struct dirent64 **, const struct dirent64 **));
    return real(to, names, filter, compare);
}
int stat(const char *restrict path, struct stat *restrict found) {
    MOVED(path); REAL(int, "stat", const char *, struct stat *); return real(to, found);
}
int lstat(const char *restrict path, struct stat *restrict found) {
    MOVED(path); REAL(int, "lstat", const char *, struct stat *); return real(to, found);
}
int stat64(const char *restrict path, struct stat64 *restrict found) {
    MOVED(path); REAL(int, "stat64", const char *, struct stat64 *); return real(to, found);
}
int lstat64(const char *restrict path, struct stat64 *restrict found) {
    MOVED(path); REAL(int, "lstat64", const char *, struct stat64 *); return real(to, found);
}
int fstatat(int at, const char *restrict path, struct stat *restrict found, int flags) {
    MOVED(path);
    REAL(int, "fstatat", int, const char *, struct stat *, int);
    return real(at, to, found, flags);
}
int fstatat64(int at, const char *restrict path, struct stat64 *restrict found, int flags) {
    MOVED(path);
    REAL(int, "fstatat64", int, const char *, struct stat64 *, int);
    return real(at, to, found, flags);
}
#ifdef STATX_TYPE
int statx(int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict found) {
    MOVED(path);
    REAL(int, "statx", int, const char *, int, unsigned, struct statx *);
    return real(at, to, flags, mask, found);
}
#endif
/* ls -l asks for these, and says so of a file that is not there. */
#define ATTRIBUTE(function) \
    ssize_t function(const char *path, const char *name, void *value, size_t size) { \
        MOVED(path); \
        REAL(ssize_t, #function, const char *, const char *, void *, size_t); \
        return real(to, name, value, size); \
    }
ATTRIBUTE(getxattr)
ATTRIBUTE(lgetxattr)

#define ATTRIBUTES(function) \
    ssize_t function(const char *path, char *names, size_t size) { \
        MOVED(path); \
        REAL(ssize_t, #function, const char *, char *, size_t); \
        return real(to, names, size); \
    }
ATTRIBUTES(listxattr)
ATTRIBUTES(llistxattr)

ssize_t readlink(const char *restrict path, char *restrict target, size_t size) {
    MOVED(path);
    REAL(ssize_t, "readlink", const char *, char *, size_t);
    return real(to, target, size);
}
int chdir(const char *path) {
    MOVED(path); REAL(int, "chdir", const char *); return real(to);
}
int access(const char *path, int mode) {
    MOVED(path); REAL(int, "access", const char *, int); return real(to, mode);
}
int faccessat(int at, const char *path, int mode, int flags) {
    MOVED(path); REAL(int, "faccessat", int, const char *, int, int); return real(at, to, mode, flags);
}

static int is(int fd, int kind) { return fd >= 0 && fd < MOST_FILES && ours[fd] == kind; }

/* Waits for room, also on descriptors that do not block: a MAD is never half written. */
static int send_all(int fd, const void *message, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t now = send(fd, (const char *)message + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (now > 0) { done += (size_t)now; continue; }
        if (errno != EAGAIN && errno != EINTR) { errno = EIO; return -1; }
        struct pollfd waits = {fd, POLLOUT, 0};
        poll(&waits, 1, -1);
    }
    return 0;
}

/* The first `size` bytes of what has come; less than all of them only at an error or the end.
 * Once a message has begun, its rest is on its way. */
static ssize_t receive_all(int fd, void *room, size_t size, int flags) {
    for (size_t done = 0;;) {
        int is_peek = flags & MSG_PEEK;
        ssize_t now = recv(fd, (char *)room + done, size - done, flags);
        if (now < 0 && errno == EINTR && done) continue;
        if (now < 0 && (!done || errno != EAGAIN)) return now;
        if (now == 0) return 0;
        if (now > 0 && !is_peek) done += (size_t)now;
        if (is_peek ? now == (ssize_t)size : done == size) return (ssize_t)size;
        /* A part of a message, which happens only where the system splits what was sent. */
        struct pollfd waits = {fd, POLLIN, 0};
        poll(&waits, 1, -1);
        if (is_peek && waits.revents & POLLHUP) return 0;
    }
}

static int agent(int fd, unsigned char *body, size_t size) {
    struct request request = {.word = WORD(REGISTER, sizeof request.body)};
    uint32_t number = 0;
    while (number < MOST_AGENTS && agents[fd] >> number & 1) number++;
    if (number == MOST_AGENTS) { errno = ENOMEM; return -1; }
    memcpy(body, &number, 4);
    memcpy(request.body, body, size);
    request.body[43] = (unsigned char)size;
    if (send_all(fd, &request, sizeof request)) return -1;
    agents[fd] |= 1u << number;
    return 0;
}

int ioctl(int fd, unsigned long what, ...) {
    va_list rest;
    va_start(rest, what);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (is(fd, 1) && (what >> 8 & 0xff) == 0x1b) {
        switch (what & 0xff) {
        case 1: return agent(fd, argument, 28);
        case 4: return agent(fd, argument, 40);
        case 3: return 0;
        case 2: {
            struct request request = {.word = WORD(UNREGISTER, sizeof request.body)};
            memcpy(request.body, argument, 4);
            uint32_t number;
            memcpy(&number, argument, 4);
            if (number >= MOST_AGENTS || !(agents[fd] >> number & 1)) { errno = EINVAL; return -1; }
            agents[fd] &= ~(1u << number);
            return send_all(fd, &request, sizeof request);
        }
        default: errno = ENOTTY; return -1;
        }
    }
    REAL(int, "ioctl", int, unsigned long, ...);
    return real(fd, what, argument);
}

ssize_t write(int fd, const void *data, size_t count) {
    if (!is(fd, 1)) { REAL(ssize_t, "write", int, const void *, size_t); return real(fd, data, count); }
    uint32_t number;
    if (count < HEADER + LEAST) { errno = EINVAL; return -1; }
    memcpy(&number, data, 4);
    if (number >= MOST_AGENTS || !(agents[fd] >> number & 1)) { errno = EINVAL; return -1; }
    if (count > LONGEST) {
        char message[4 + 256];
        static unsigned long serial;
        unsigned long own = __atomic_fetch_add(&serial, 1, __ATOMIC_RELAXED);
        snprintf(message + 4, 256, "%s/long-%d-%lu", getenv("IBWIRE_ROOT"), getpid(), own);
        REAL(int, "open", const char *, int, ...);
        int file = real(message + 4, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (file < 0) return -1;
        for (size_t done = 0; done < count;) {
            ssize_t now = pwrite(file, (const char *)data + done, count - done, (off_t)done);
            if (now <= 0) { close(file); return -1; }
            done += (size_t)now;
        }
        close(file);
        uint32_t word = WORD(FILED, strlen(message + 4));
        memcpy(message, &word, 4);
        return send_all(fd, message, 4 + strlen(message + 4)) ? -1 : (ssize_t)count;
    }
    char message[4 + LONGEST];
    uint32_t word = WORD(INLINE, count);
    memcpy(message, &word, 4);
    memcpy(message + 4, data, count);
    return send_all(fd, message, 4 + count) ? -1 : (ssize_t)count;
}

/* The next message, if there is one; EAGAIN if not. */
static ssize_t next(int fd, void *data, size_t count) {
    char message[4 + LONGEST + 1];
    uint32_t word;
    ssize_t got = receive_all(fd, &word, sizeof word, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0) return got;
    size_t whole = 4 + (word & 0xffffff), wanted = whole;
    /* A MAD that has no room stays: as much of it is looked at as is given out. */
    int stays = word >> 24 == INLINE && whole - 4 > count;
    if (stays && wanted > 4 + HEADER + 256) wanted = 4 + HEADER + 256;
    if (got == 0 || whole > 4 + LONGEST) { errno = EIO; return -1; }
    int flags = MSG_DONTWAIT | (stays || word >> 24 == FILED ? MSG_PEEK : 0);
    got = receive_all(fd, message, wanted, flags);
    if (got < 0) return got;
    if (got == 0) { errno = EIO; return -1; }
    char *found = message + 4;
    size_t size = whole - 4;
    int file = -1;
    struct stat about;
    if (word >> 24 == FILED) {
        found[size] = 0;
        REAL(int, "open", const char *, int, ...);
        file = real(found, O_RDONLY | O_CLOEXEC);
        if (file < 0 || fstat(file, &about)) { errno = EIO; return -1; }
        size = (size_t)about.st_size;
    }
    ssize_t result = (ssize_t)size;
    size_t copied = size;
    if (size > count) {
        /* As the kernel: the first MAD of a long message, and its whole length in the header. */
        result = -1;
        copied = size > HEADER + 256 && count >= HEADER + 256 ? HEADER + 256 : 0;
    }
    if (file >= 0) {
        for (size_t done = 0; done < copied;) {
            ssize_t now = pread(file, (char *)data + done, copied - done, (off_t)done);
            if (now <= 0) { close(file); errno = EIO; return -1; }
            done += (size_t)now;
        }
        close(file);
        if (result >= 0) { unlink(found); receive_all(fd, message, whole, MSG_DONTWAIT); }
    } else {
        memcpy(data, found, copied);
    }
    if (result < 0) errno = copied ? ENOSPC : EINVAL;
    return result;
}

/* Held by the thread that takes a message, never while it waits for one. */
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void) { pthread_mutex_init(&taking, NULL); }
__attribute__((constructor)) static void loaded(void) { pthread_atfork(NULL, NULL, in_child); }

ssize_t read(int fd, void *data, size_t count) {
    if (!is(fd, 1)) { REAL(ssize_t, "read", int, void *, size_t); return real(fd, data, count); }
    for (;;) {
        int cancels, error;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancels);
        pthread_mutex_lock(&taking);
        ssize_t got = next(fd, data, count);
        error = errno;
        pthread_mutex_unlock(&taking);
        pthread_setcancelstate(cancels, NULL);
        errno = error;
        if (got >= 0 || error != EAGAIN || fcntl(fd, F_GETFL) & O_NONBLOCK) return got;
        char first;
        if (recv(fd, &first, 1, MSG_PEEK) < 0) return -1;
    }
}

int close(int fd) {
    if (fd >= 0 && fd < MOST_FILES) ours[fd] = 0;
    REAL(int, "close", int);
    return real(fd);
}
