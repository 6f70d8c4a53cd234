/* A strict reader of JSON (RFC 8259) in bytes that are already in memory. Nothing is allocated or copied,
 * and no function reads outside its span, whatever the bytes are. */
#ifndef K8S_RDMA_JSON_H
#define K8S_RDMA_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes [at, end). An absent value has `at` NULL. */
struct span {
    const unsigned char *at;
    const unsigned char *end;
};

/* Documents nest no deeper: one object in nothing is depth 1. */
enum { JSON_MAX_DEPTH = 128 };

/* What json_next_char answers beside a code point. */
#define JSON_END UINT32_MAX
#define JSON_INVALID (UINT32_MAX - 1)

/* Whether `text` is one JSON document in UTF-8. On true it is trimmed to the value itself; on false
 * `text->at` is the first byte that does not fit. */
bool json_document(struct span *text);

/* Steps through an object: `rest` starts as the object's span; false after the last member, and for
 * anything that is no object. */
bool json_next_member(struct span *rest, struct span *key, struct span *value);

/* The value of the member `name` (ASCII); the last one counts, absent when there is none. */
struct span json_member(struct span object, const char *name);

/* The first byte of a value tells its kind: { [ " t f n, - or a digit. */
bool json_is(struct span value, unsigned char first);

/* A string's bytes between its quotes, to read with json_next_char. */
struct span json_body(struct span string);

/* The next character: a code point with escapes resolved (a surrogate that stands alone is itself),
 * JSON_END or JSON_INVALID. */
uint32_t json_next_char(struct span *body);

/* Whether a string says exactly `text` (ASCII). */
bool json_equals(struct span string, const char *text);

/* Copies a string as NUL-terminated UTF-8; false when it is no string, does not fit, holds a NUL or a lone
 * surrogate. */
bool json_copy(struct span string, char *out, size_t size);

/* Writes `text` as a JSON string with its quotes into `out`, cut off where it no longer fits; what is
 * no UTF-8 becomes `?`. `size` is at least 3. */
void json_quote(const char *text, char *out, size_t size);

#endif
