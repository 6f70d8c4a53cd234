#include "memlock.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include "io.h"

/* A state has a container's annotations, of which Kubernetes allows 256 KiB, escaped. */
enum { MAX_STATE_SIZE = 4 << 20, STATE_TIMEOUT_MS = 5 * 1000 };

static unsigned char state[MAX_STATE_SIZE + 1];

/* A whole number without sign; false for anything else, and beyond `largest`. */
static bool read_number(struct span text, uint64_t largest, uint64_t *number)
{
    uint64_t found = 0;
    if (text.at == NULL || text.at == text.end)
        return false;
    for (; text.at < text.end; text.at++) {
        uint64_t digit = (uint64_t)*text.at - '0';
        if (*text.at < '0' || *text.at > '9' || found > (largest - digit) / 10)
            return false;
        found = found * 10 + digit;
    }
    *number = found;
    return true;
}

static bool read_amount(const char *text, rlim_t *amount)
{
    struct span digits = {(const unsigned char *)text, (const unsigned char *)text + strlen(text)};
    uint64_t number = RLIM_INFINITY;
    bool valid = strcmp(text, "unlimited") == 0 || read_number(digits, RLIM_INFINITY - 1, &number);
    *amount = number; /* musl's rlim_t is as wide, but another type */
    return valid;
}

/* The process that becomes the container's; 0 where the state names none, and errno. 1 and what has no sign of a
 * process are refused: prlimit(2) takes 0 for the caller. */
static pid_t read_pid(void)
{
    ssize_t size = read_all(STDIN_FILENO, state, sizeof state, now_ms() + STATE_TIMEOUT_MS);
    if (size < 0)
        return 0;
    errno = EINVAL;
    struct span document = {state, state + size};
    uint64_t pid = 0;
    if (size > MAX_STATE_SIZE || !json_document(&document)
        || !read_number(json_member(document, "pid"), INT_MAX, &pid) || pid < 2)
        return 0;
    return (pid_t)pid;
}

/* RLIM_INFINITY is the largest number, so that limits compare as such (linux/resource.h). */
static bool raise_limit(pid_t pid, rlim_t amount)
{
    struct rlimit limit;
    if (prlimit(pid, RLIMIT_MEMLOCK, NULL, &limit) != 0)
        return false;
    if (limit.rlim_cur >= amount)
        return true;
    limit.rlim_cur = amount;
    if (limit.rlim_max < amount)
        limit.rlim_max = amount;
    return prlimit(pid, RLIMIT_MEMLOCK, &limit, NULL) == 0;
}

int memlock_hook(int argc, char **argv)
{
    rlim_t amount;
    bool required = argc == 4 && strcmp(argv[3], "required") == 0;
    if (argc < 3 || argc > 4 || (argc == 4 && !required)
        || !read_amount(argv[2], &amount)) {
        fprintf(stderr, "k8s-rdma-cni: usage of the OCI hook: memlock BYTES|unlimited [required]\n");
        return EXIT_FAILURE;
    }
    pid_t pid = read_pid();
    if (pid != 0 && raise_limit(pid, amount))
        return EXIT_SUCCESS;
    fprintf(stderr, "k8s-rdma-cni: the container may not lock %s bytes: %s: %s\n", argv[2],
            pid == 0 ? "its state on standard input" : "prlimit RLIMIT_MEMLOCK", strerror(errno));
    return required ? EXIT_FAILURE : EXIT_SUCCESS;
}
