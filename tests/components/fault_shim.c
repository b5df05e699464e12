/* Loaded with LD_PRELOAD: makes file operations under one folder fail, or the process die at them, as a control file
 * says. The control file is an array of 64-bit words shared by mapping (layout: `Words` in fullness.py, which must
 * match the enum below). Operations are counted whether or not anything fails.
 *
 * Sees calls that go through libc's symbols: Python's os module, Rust's std, C++ streams built on open/write. Does not
 * see stdio (glibc calls itself directly), io_uring, mmap'ed writes, or static programs such as Go's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum operation { CREATE, WRITE, FSYNC, LINK, RENAME, UNLINK, MKDIR, OPERATIONS };
enum action { ACT_NEVER, ACT_KILL_BEFORE, ACT_KILL_AFTER, ACT_KILL_HALFWAY, ACT_FAIL };
enum word {
    TRIGGER_MASK,   /* bit per operation that the trigger counts */
    TRIGGER_AT,     /* acts at the n-th of them; 0: off */
    TRIGGER_ACTION,
    TRIGGER_ERRNO,
    TRIGGER_SEEN,
    TRIGGER_FIRED,  /* 0, or the id of the process in which it acted */
    SEEN,                         /* one word per operation */
    FAILING = SEEN + OPERATIONS,  /* one word per operation: errno with which every one of them fails, or 0 */
    FAILED = FAILING + OPERATIONS, /* one word per operation: how many were made to fail */
    WORDS = FAILED + OPERATIONS
};

static volatile int64_t *words;
static char prefix[PATH_MAX];
static size_t prefix_length;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) { fprintf(stderr, "fault shim: libc has no %s\n", name); abort(); }
    return found;
}

__attribute__((constructor)) static void begin(void) {
    const char *control = getenv("FAULT_SHIM_CONTROL"), *under = getenv("FAULT_SHIM_UNDER");
    if (!control || !under || !realpath(under, prefix)) return;
    prefix_length = strlen(prefix);
    int fd = REAL(open)(control, O_RDWR | O_CLOEXEC);
    if (fd < 0) { perror("fault shim: control file"); abort(); }
    void *mapped = mmap(NULL, WORDS * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) { perror("fault shim: control file"); abort(); }
    words = mapped;
}

static int is_under(const char *path) {
    return strncmp(path, prefix, prefix_length) == 0 && (path[prefix_length] == '/' || path[prefix_length] == 0);
}

static int fd_is_under(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_under(path);
}

/* The last component need not exist, and must not be followed if it is a link: its folder is what gets resolved. */
static int path_is_under(int folder, const char *path) {
    char joined[PATH_MAX * 2], resolved[PATH_MAX];
    if (path[0] == '/') {
        snprintf(joined, sizeof joined, "%s", path);
    } else if (folder == AT_FDCWD) {
        snprintf(joined, sizeof joined, "./%s", path);
    } else {
        snprintf(joined, sizeof joined, "/proc/self/fd/%d/%s", folder, path);
    }
    char *last = strrchr(joined, '/');
    if (last == joined) return is_under(path);
    *last = 0;
    return realpath(joined, resolved) && is_under(resolved);
}

static void die(void) {
    words[TRIGGER_FIRED] = getpid();
    kill(getpid(), SIGKILL);
    for (;;) pause(); /* not reached, or another thread got there first */
}

/* Counts the operation. Returns what is to happen to it; for ACT_FAIL, errno is set. */
static enum action met(enum operation operation) {
    __atomic_fetch_add(&words[SEEN + operation], 1, __ATOMIC_SEQ_CST);
    int64_t at = words[TRIGGER_AT];
    if (at && (words[TRIGGER_MASK] >> operation & 1) &&
        __atomic_add_fetch(&words[TRIGGER_SEEN], 1, __ATOMIC_SEQ_CST) == at) {
        enum action action = words[TRIGGER_ACTION];
        if (action == ACT_KILL_BEFORE) die();
        if (action == ACT_FAIL) {
            words[TRIGGER_FIRED] = getpid();
            __atomic_fetch_add(&words[FAILED + operation], 1, __ATOMIC_SEQ_CST);
            errno = words[TRIGGER_ERRNO];
        }
        return action;
    }
    if (words[FAILING + operation]) {
        __atomic_fetch_add(&words[FAILED + operation], 1, __ATOMIC_SEQ_CST);
        errno = words[FAILING + operation];
        return ACT_FAIL;
    }
    return ACT_NEVER;
}

/* An operation that cannot be done by half: killed "halfway" means killed before. */
#define GUARDED(concerned, operation, call)                              \
    do {                                                                 \
        int saved_errno = errno;                                         \
        enum action action = words && (concerned) ? met(operation) : ACT_NEVER; \
        if (action == ACT_FAIL) return -1;                               \
        if (action == ACT_KILL_HALFWAY) die();                           \
        errno = saved_errno;                                             \
        __typeof__(call) result = call;                                  \
        if (action == ACT_KILL_AFTER) die();                             \
        return result;                                                   \
    } while (0)

#define GUARDED_WRITE(call, half_call)                                   \
    do {                                                                 \
        int saved_errno = errno;                                         \
        enum action action = words && fd_is_under(fd) ? met(WRITE) : ACT_NEVER; \
        if (action == ACT_FAIL) return -1;                               \
        if (action == ACT_KILL_HALFWAY) { (void)!half_call; die(); }     \
        errno = saved_errno;                                             \
        ssize_t result = call;                                           \
        if (action == ACT_KILL_AFTER) die();                             \
        return result;                                                   \
    } while (0)

#define CREATES(flags) (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE)
#define MODE_ARGUMENT                                                    \
    mode_t mode = 0;                                                     \
    if (CREATES(flags)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

#define DEFINE_OPEN(name)                                                \
    int name(const char *path, int flags, ...) {                         \
        MODE_ARGUMENT                                                    \
        GUARDED(CREATES(flags) && path_is_under(AT_FDCWD, path), CREATE, REAL(name)(path, flags, mode)); \
    }
#define DEFINE_OPENAT(name)                                              \
    int name(int folder, const char *path, int flags, ...) {             \
        MODE_ARGUMENT                                                    \
        GUARDED(CREATES(flags) && path_is_under(folder, path), CREATE, REAL(name)(folder, path, flags, mode)); \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t size) {
    GUARDED_WRITE(REAL(write)(fd, data, size), REAL(write)(fd, data, size / 2));
}
#define DEFINE_PWRITE(name, offset_type)                                 \
    ssize_t name(int fd, const void *data, size_t size, offset_type at) { \
        GUARDED_WRITE(REAL(name)(fd, data, size, at), REAL(name)(fd, data, size / 2, at)); \
    }
DEFINE_PWRITE(pwrite, off_t)
DEFINE_PWRITE(pwrite64, off64_t)

/* Half of a gathered write is half of its first piece: short, and never all of it. */
static size_t half_of_first(const struct iovec *pieces, int count) { return count > 0 ? pieces[0].iov_len / 2 : 0; }

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    GUARDED_WRITE(REAL(writev)(fd, pieces, count), REAL(write)(fd, pieces[0].iov_base, half_of_first(pieces, count)));
}
#define DEFINE_PWRITEV(name, offset_type)                                \
    ssize_t name(int fd, const struct iovec *pieces, int count, offset_type at) { \
        GUARDED_WRITE(REAL(name)(fd, pieces, count, at),                 \
                      REAL(pwrite)(fd, pieces[0].iov_base, half_of_first(pieces, count), at)); \
    }
#define DEFINE_PWRITEV2(name, offset_type)                               \
    ssize_t name(int fd, const struct iovec *pieces, int count, offset_type at, int flags) { \
        GUARDED_WRITE(REAL(name)(fd, pieces, count, at, flags),          \
                      REAL(pwrite)(fd, pieces[0].iov_base, half_of_first(pieces, count), at)); \
    }
DEFINE_PWRITEV(pwritev, off_t)
DEFINE_PWRITEV(pwritev64, off64_t)
DEFINE_PWRITEV2(pwritev2, off_t)
DEFINE_PWRITEV2(pwritev64v2, off64_t)

int fsync(int fd) { GUARDED(fd_is_under(fd), FSYNC, REAL(fsync)(fd)); }
int fdatasync(int fd) { GUARDED(fd_is_under(fd), FSYNC, REAL(fdatasync)(fd)); }

int link(const char *from, const char *to) { GUARDED(path_is_under(AT_FDCWD, to), LINK, REAL(link)(from, to)); }
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    GUARDED(path_is_under(to_folder, to), LINK, REAL(linkat)(from_folder, from, to_folder, to, flags));
}

int rename(const char *from, const char *to) {
    GUARDED(path_is_under(AT_FDCWD, from) || path_is_under(AT_FDCWD, to), RENAME, REAL(rename)(from, to));
}
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    GUARDED(path_is_under(from_folder, from) || path_is_under(to_folder, to), RENAME,
            REAL(renameat)(from_folder, from, to_folder, to));
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned int flags) {
    GUARDED(path_is_under(from_folder, from) || path_is_under(to_folder, to), RENAME,
            REAL(renameat2)(from_folder, from, to_folder, to, flags));
}

int unlink(const char *path) { GUARDED(path_is_under(AT_FDCWD, path), UNLINK, REAL(unlink)(path)); }
int unlinkat(int folder, const char *path, int flags) {
    GUARDED(path_is_under(folder, path), UNLINK, REAL(unlinkat)(folder, path, flags));
}

int mkdir(const char *path, mode_t mode) { GUARDED(path_is_under(AT_FDCWD, path), MKDIR, REAL(mkdir)(path, mode)); }
int mkdirat(int folder, const char *path, mode_t mode) {
    GUARDED(path_is_under(folder, path), MKDIR, REAL(mkdirat)(folder, path, mode));
}
