/* Whole reads and writes, and waiting, none of it beyond a deadline: milliseconds of CLOCK_MONOTONIC. */
#ifndef K8S_RDMA_IO_H
#define K8S_RDMA_IO_H

#include <sys/types.h>

#include "json.h"

/* Milliseconds of CLOCK_MONOTONIC. */
uint64_t now_ms(void);

/* How long until then; 0 when it has come. */
uint64_t left_ms(uint64_t deadline_ms);

/* Waits until poll(2) reports `events`; false with errno, ETIMEDOUT when `deadline_ms` has come. */
bool wait_ready(int fd, short events, uint64_t deadline_ms);

/* Reads until `size` bytes or the end; how many, -1 with errno. */
ssize_t read_all(int fd, void *buffer, size_t size, uint64_t deadline_ms);

/* Writes everything; false with errno. */
bool write_all(int fd, struct span data, uint64_t deadline_ms);

#endif
