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

uint64_t left_ms(uint64_t deadline_ms)
{
    uint64_t now = now_ms();
    return deadline_ms > now ? deadline_ms - now : 0;
}

bool wait_ready(int fd, short events, uint64_t deadline_ms)
{
    struct pollfd wanted = {.fd = fd, .events = events};
    int ready;
    do {
        uint64_t left = left_ms(deadline_ms);
        ready = poll(&wanted, 1, left < INT_MAX ? (int)left : INT_MAX);
    } while (ready < 0 && errno == EINTR);
    if (ready == 0)
        errno = ETIMEDOUT;
    return ready > 0;
}

ssize_t read_all(int fd, void *buffer, size_t size, uint64_t deadline_ms)
{
    size_t have = 0;
    while (have < size) {
        if (!wait_ready(fd, POLLIN, deadline_ms))
            return -1;
        ssize_t got = read(fd, (char *)buffer + have, size - have);
        if (got == 0)
            break;
        if (got > 0)
            have += (size_t)got;
        else if (errno != EAGAIN && errno != EINTR)
            return -1;
    }
    return (ssize_t)have;
}

/* A pipe that poll(2) calls writable takes PIPE_BUF bytes without blocking (linux/fs/pipe.c, pipe_poll): so
 * nothing has to be changed about a descriptor that others may share. */
bool write_all(int fd, struct span data, uint64_t deadline_ms)
{
    while (data.at < data.end) {
        if (!wait_ready(fd, POLLOUT, deadline_ms))
            return false;
        size_t left = (size_t)(data.end - data.at);
        ssize_t written = write(fd, data.at, left < PIPE_BUF ? left : PIPE_BUF);
        if (written >= 0)
            data.at += written;
        else if (errno != EAGAIN && errno != EINTR)
            return false;
    }
    return true;
}
