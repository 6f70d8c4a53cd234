#include "io.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* poll(2)'s timeout argument: -1 waits for ever, 0 not at all. */
static int poll_timeout(uint64_t deadline_ms)
{
    if (deadline_ms == FOREVER)
        return -1;
    uint64_t now = now_ms();
    uint64_t left = deadline_ms > now ? deadline_ms - now : 0;
    return left < INT_MAX ? (int)left : INT_MAX;
}

bool wait_ready(int fd, short events, uint64_t deadline_ms)
{
    struct pollfd wanted = {.fd = fd, .events = events};
    int ready;
    do
        ready = poll(&wanted, 1, poll_timeout(deadline_ms));
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        errno = ETIMEDOUT;
    return ready > 0;
}

ssize_t read_all(int fd, void *buffer, size_t size, uint64_t deadline_ms)
{
    size_t have = 0;
    while (have < size) {
        if (deadline_ms != FOREVER && !wait_ready(fd, POLLIN, deadline_ms))
            return -1;
        ssize_t got = read(fd, (char *)buffer + have, size - have);
        if (got == 0)
            break;
        if (got > 0)
            have += (size_t)got;
        else if (errno == EAGAIN ? !wait_ready(fd, POLLIN, deadline_ms) : errno != EINTR)
            return -1;
    }
    return (ssize_t)have;
}

bool write_all(int fd, struct span data)
{
    while (data.at < data.end) {
        ssize_t written = write(fd, data.at, (size_t)(data.end - data.at));
        if (written >= 0)
            data.at += written;
        else if (errno == EAGAIN ? !wait_ready(fd, POLLOUT, FOREVER) : errno != EINTR)
            return false;
    }
    return true;
}
