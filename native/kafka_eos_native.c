/* Batches of Kafka records for kafka_eos, through the librdkafka that confluent_kafka has loaded.
 *
 * This module has no client of its own. It is a plugin of librdkafka (plugin.library.paths): its interceptor sees each
 * new client of confluent_kafka that was configured with it. Configuration, logins, callbacks, assignment and
 * transactions stay with confluent_kafka; only records take another path. Partitions are forwarded to a queue that
 * belongs to this module, and one call returns what is there as lists and packed integers, instead of one object per
 * record. One call passes the columns of a batch to a producer, instead of one call per record.
 *
 * Rules:
 *   - Only functions and structures of librdkafka's public header are used, found by name in the library that is loaded.
 *   - Records are copied and given back to librdkafka before the GIL is taken. No pointer into a message outlives it.
 *   - The lock of a client is never held by a thread that has, or waits for, the GIL: librdkafka ends a client in
 *     whichever thread destroys it, and waits here for a fetch or a batch of rows that is under way.
 *   - A record that librdkafka has accepted and does not deliver is always noted before it stops counting as
 *     outstanding. So after a flush that has left none, all failures are known.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The interface between this module and the connector. Both must have the same number. */
#define INTERFACE 2

/* ---------------------------------------------------------------- librdkafka's public interface */

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;

typedef struct {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

typedef int on_new_t(rd_kafka_t *, const rd_kafka_conf_t *, void *, char *, size_t);
typedef int on_destroy_t(rd_kafka_t *, void *);
typedef int on_acknowledgement_t(rd_kafka_t *, rd_kafka_message_t *, void *);

enum { TIMESTAMP_NOT_AVAILABLE = 0, ERR__FAIL = -196, CONF_OK = 0, MSG_F_COPY = 2 };

/* The tags of producev()'s arguments. */
enum { V_END = 0, V_RKT = 2, V_PARTITION = 3, V_VALUE = 4, V_KEY = 5, V_MSGFLAGS = 7, V_TIMESTAMP = 8, V_HEADER = 9 };

#define FUNCTIONS(F)                                                                                                   \
    F(int, version, (void))                                                                                            \
    F(rd_kafka_conf_t *, conf_new, (void))                                                                             \
    F(void, conf_destroy, (rd_kafka_conf_t *))                                                                         \
    F(int, conf_get, (const rd_kafka_conf_t *, const char *, char *, size_t *))                                        \
    F(int, conf_interceptor_add_on_new, (rd_kafka_conf_t *, const char *, on_new_t *, void *))                         \
    F(int, interceptor_add_on_destroy, (rd_kafka_t *, const char *, on_destroy_t *, void *))                           \
    F(int, interceptor_add_on_acknowledgement, (rd_kafka_t *, const char *, on_acknowledgement_t *, void *))           \
    F(rd_kafka_queue_t *, queue_new, (rd_kafka_t *))                                                                   \
    F(void, queue_destroy, (rd_kafka_queue_t *))                                                                       \
    F(rd_kafka_queue_t *, queue_get_partition, (rd_kafka_t *, const char *, int32_t))                                  \
    F(void, queue_forward, (rd_kafka_queue_t *, rd_kafka_queue_t *))                                                   \
    F(ssize_t, consume_batch_queue, (rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t))                          \
    F(void, message_destroy, (rd_kafka_message_t *))                                                                   \
    F(int64_t, message_timestamp, (const rd_kafka_message_t *, int *))                                                 \
    F(const char *, message_errstr, (const rd_kafka_message_t *))                                                      \
    F(int, message_headers, (const rd_kafka_message_t *, rd_kafka_headers_t **))                                       \
    F(int, header_get_all, (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))               \
    F(const char *, topic_name, (const rd_kafka_topic_t *))                                                            \
    F(rd_kafka_topic_t *, topic_new, (rd_kafka_t *, const char *, void *))                                             \
    F(void, topic_destroy, (rd_kafka_topic_t *))                                                                       \
    F(int, producev, (rd_kafka_t *, ...))

static struct {
#define MEMBER(result, name, arguments) result(*name) arguments;
    FUNCTIONS(MEMBER)
#undef MEMBER
} rk;

static void *library; /* Stays open: the functions are used until the process ends. */

/* ---------------------------------------------------------------- clients */

typedef struct {
    char *topic;
    int32_t partition;
} place_t;

/* Records of one topic that were not delivered, all for the same reason. */
typedef struct {
    char *topic;
    int code;
} loss_t;

/* One client of confluent_kafka. It is shared by librdkafka, until on_destroy, and by this module. */
typedef struct client_s {
    pthread_mutex_t lock;
    pthread_cond_t unused;
    int references;
    int calls;               /* Threads that use the handle without the lock. */
    rd_kafka_t *handle;      /* NULL once the client is destroyed. */
    rd_kafka_queue_t *queue; /* NULL until it is opened, and once it is closed. */
    place_t *places;         /* The partitions that are forwarded to the queue. */
    size_t count, room;

    /* Guarded by the lock of all clients. Losses are only added, so that none is lost on the way to Python. */
    struct client_s *next;
    loss_t *losses;
    size_t loss_count, loss_room;
    int unnoted; /* Whether there was no memory to note a loss. */
} client_t;

/* The client that this thread has just created. Its reference is passed on by take_queue() or take_sender(). */
static _Thread_local client_t *newest;

/* All clients that are not destroyed. The lock is taken last, for moments, also by threads that have the GIL. */
static client_t *clients;
static pthread_mutex_t clients_lock = PTHREAD_MUTEX_INITIALIZER;

static void release(client_t *client) {
    pthread_mutex_lock(&client->lock);
    int left = --client->references;
    pthread_mutex_unlock(&client->lock);
    if (left > 0) return;
    for (size_t at = 0; at < client->count; at++) free(client->places[at].topic);
    for (size_t at = 0; at < client->loss_count; at++) free(client->losses[at].topic);
    free(client->places);
    free(client->losses);
    pthread_cond_destroy(&client->unused);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

static void close_queue(client_t *client) {
    if (client->queue) rk.queue_destroy(client->queue);
    client->queue = NULL;
}

static int on_destroy(rd_kafka_t *handle, void *opaque) {
    (void)handle;
    client_t *client = opaque;
    pthread_mutex_lock(&clients_lock);
    client_t **place = &clients;
    while (*place != client) place = &(*place)->next;
    *place = client->next;
    pthread_mutex_unlock(&clients_lock);
    pthread_mutex_lock(&client->lock);
    while (client->calls) pthread_cond_wait(&client->unused, &client->lock);
    close_queue(client);
    client->handle = NULL;
    pthread_mutex_unlock(&client->lock);
    release(client);
    return 0;
}

static void note_loss(client_t *client, const char *topic, int code) {
    for (size_t at = 0; at < client->loss_count; at++)
        if (client->losses[at].code == code && !strcmp(client->losses[at].topic, topic)) return;
    if (client->loss_count == client->loss_room) {
        size_t room = client->loss_room ? 2 * client->loss_room : 4;
        loss_t *losses = realloc(client->losses, room * sizeof *losses);
        if (losses) {
            client->losses = losses;
            client->loss_room = room;
        }
    }
    char *name = client->loss_count < client->loss_room ? strdup(topic) : NULL;
    if (name)
        client->losses[client->loss_count++] = (loss_t){name, code};
    else
        client->unnoted = 1;
}

/* Whether this thread is in producev(), which calls on_acknowledgement for a record that it does not accept. */
static _Thread_local int producing;

/* Called by librdkafka for each record that was delivered or has failed, by the thread of a broker, before the record
 * stops counting as outstanding. It may do so until the client's last thread has ended, which is after on_destroy. So
 * the client is looked up. A record with an opaque was produced by confluent_kafka, which reports it itself. */
static int on_acknowledgement(rd_kafka_t *handle, rd_kafka_message_t *message, void *opaque) {
    (void)opaque;
    if (!message->err || message->_private || producing) return 0;
    pthread_mutex_lock(&clients_lock);
    client_t *client = clients;
    while (client && client->handle != handle) client = client->next;
    if (client) note_loss(client, rk.topic_name(message->rkt), message->err);
    pthread_mutex_unlock(&clients_lock);
    return 0;
}

static int on_new(rd_kafka_t *handle, const rd_kafka_conf_t *conf, void *opaque, char *text, size_t size) {
    (void)conf, (void)opaque, (void)text, (void)size;
    client_t *client = calloc(1, sizeof *client);
    if (!client) return ERR__FAIL;
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->unused, NULL);
    client->handle = handle;
    client->references = 2;
    int error = rk.interceptor_add_on_acknowledgement(handle, "kafka_eos_native", on_acknowledgement, NULL);
    if (!error) error = rk.interceptor_add_on_destroy(handle, "kafka_eos_native", on_destroy, client);
    if (error) {
        client->references = 1;
        release(client);
        return error;
    }
    pthread_mutex_lock(&clients_lock);
    client->next = clients;
    clients = client;
    pthread_mutex_unlock(&clients_lock);
    if (newest) release(newest);
    newest = client;
    return 0;
}

/* Called by librdkafka when a configuration names this module in plugin.library.paths. */
__attribute__((visibility("default"))) int conf_init(rd_kafka_conf_t *conf, void **opaque, char *text, size_t size) {
    (void)opaque;
    if (!library) {
        if (size) snprintf(text, size, "kafka_eos_native is not loaded");
        return ERR__FAIL;
    }
    return rk.conf_interceptor_add_on_new(conf, "kafka_eos_native", on_new, NULL);
}

static void forward_place(client_t *client, const place_t *place) {
    rd_kafka_queue_t *source = rk.queue_get_partition(client->handle, place->topic, place->partition);
    if (!source) return;
    rk.queue_forward(source, client->queue);
    rk.queue_destroy(source);
}

/* ---------------------------------------------------------------- a batch, without the GIL */

enum { CHUNK = 256, MOST_BYTES = 16 << 20 };

typedef struct {
    char *data;
    size_t used, room;
} buffer_t;

typedef struct {
    int64_t at; /* Where it begins in the buffer. */
    int64_t length; /* -1: there is none. */
} span_t;

typedef struct {
    int64_t offset, timestamp;
    span_t value, key, headers;
    int32_t partition;
    uint32_t topic;
} row_t;

typedef struct {
    int64_t offset;
    span_t text, topic;
    int32_t code, partition;
} failure_t;

typedef struct {
    char *name;
    Py_ssize_t rows;
    int headers; /* Whether one of its rows has headers. */
} topic_t;

typedef struct {
    buffer_t bytes, rows, failures, topics;
    size_t row_count, failure_count, topic_count;
} batch_t;

static void *reserve(buffer_t *buffer, size_t more) {
    if (buffer->room - buffer->used < more) {
        size_t room = buffer->room ? buffer->room : 4096;
        while (room - buffer->used < more) room *= 2;
        char *data = realloc(buffer->data, room);
        if (!data) return NULL;
        buffer->data = data;
        buffer->room = room;
    }
    void *place = buffer->data + buffer->used;
    buffer->used += more;
    return place;
}

static int append(buffer_t *buffer, const void *data, size_t length, span_t *span) {
    *span = (span_t){(int64_t)buffer->used, data ? (int64_t)length : -1};
    if (!data || !length) return 0;
    void *place = reserve(buffer, length);
    if (!place) return -1;
    memcpy(place, data, length);
    return 0;
}

/* Headers are packed: for each, the length of its name, its name, the length of its value or -1, and its value. */
static int append_headers(buffer_t *buffer, const rd_kafka_message_t *message, span_t *span) {
    rd_kafka_headers_t *headers;
    *span = (span_t){(int64_t)buffer->used, -1};
    if (rk.message_headers(message, &headers)) return 0; /* There are none. */
    const char *name;
    const void *value;
    size_t length;
    for (size_t at = 0; !rk.header_get_all(headers, at, &name, &value, &length); at++) {
        int32_t name_length = (int32_t)strlen(name), value_length = value ? (int32_t)length : -1;
        size_t size = (size_t)name_length + (value ? length : 0) + 2 * sizeof(int32_t);
        char *place = reserve(buffer, size);
        if (!place) return -1;
        memcpy(place, &name_length, sizeof(int32_t));
        memcpy(place += sizeof(int32_t), name, (size_t)name_length);
        memcpy(place += name_length, &value_length, sizeof(int32_t));
        if (value) memcpy(place + sizeof(int32_t), value, length);
    }
    span->length = (int64_t)buffer->used - span->at;
    return 0;
}

static int add_failure(batch_t *batch, const rd_kafka_message_t *message) {
    failure_t *failure = reserve(&batch->failures, sizeof *failure);
    if (!failure) return -1;
    batch->failure_count++;
    failure->code = message->err;
    failure->partition = message->partition;
    failure->offset = message->offset;
    const char *text = rk.message_errstr(message), *topic = message->rkt ? rk.topic_name(message->rkt) : NULL;
    if (append(&batch->bytes, text, text ? strlen(text) : 0, &failure->text)) return -1;
    return append(&batch->bytes, topic, topic ? strlen(topic) : 0, &failure->topic);
}

static int find_topic(batch_t *batch, const char *name, uint32_t *found) {
    topic_t *topics = (topic_t *)batch->topics.data;
    for (size_t at = batch->topic_count; at-- > 0;) {
        if (!strcmp(topics[at].name, name)) {
            *found = (uint32_t)at;
            return 0;
        }
    }
    topic_t *added = reserve(&batch->topics, sizeof *added);
    if (!added) return -1;
    *added = (topic_t){strdup(name), 0, 0};
    *found = (uint32_t)batch->topic_count++;
    return added->name ? 0 : -1;
}

static int add_row(batch_t *batch, const rd_kafka_message_t *message, uint32_t topic) {
    row_t *row = reserve(&batch->rows, sizeof *row);
    if (!row) return -1;
    batch->row_count++;
    int kind;
    int64_t time = rk.message_timestamp(message, &kind);
    row->offset = message->offset;
    row->timestamp = kind == TIMESTAMP_NOT_AVAILABLE ? -1 : time;
    row->partition = message->partition;
    row->topic = topic;
    if (append(&batch->bytes, message->payload, message->len, &row->value)) return -1;
    if (append(&batch->bytes, message->key, message->key_len, &row->key)) return -1;
    if (append_headers(&batch->bytes, message, &row->headers)) return -1;
    topic_t *of = (topic_t *)batch->topics.data + topic;
    of->rows++;
    if (row->headers.length >= 0) of->headers = 1;
    return 0;
}

/* Copy some messages, and give all of them back. Return -1 if there is no memory. */
static int add_messages(batch_t *batch, rd_kafka_message_t **messages, ssize_t count) {
    int failed = 0;
    uint32_t topic = 0;
    const rd_kafka_topic_t *last = NULL;
    for (ssize_t at = 0; at < count && !failed; at++) {
        const rd_kafka_message_t *message = messages[at];
        if (message->err) {
            failed = add_failure(batch, message);
        } else {
            if (message->rkt != last) failed = find_topic(batch, rk.topic_name(message->rkt), &topic);
            last = message->rkt;
            if (!failed) failed = add_row(batch, message, topic);
        }
    }
    for (ssize_t at = 0; at < count; at++) rk.message_destroy(messages[at]);
    return failed;
}

/* Fill the batch with what is there; if there is nothing, wait for the first record. Return -1 without memory. */
static int fill(client_t *client, batch_t *batch, size_t most, int timeout) {
    rd_kafka_message_t *messages[CHUNK];
    int waited = 0;
    for (size_t done = 0; done < most && batch->bytes.used < MOST_BYTES;) {
        size_t wanted = most - done < CHUNK ? most - done : CHUNK;
        ssize_t count = rk.consume_batch_queue(client->queue, 0, messages, wanted);
        if (count <= 0) {
            if (done || waited || timeout <= 0) return 0;
            waited = 1;
            count = rk.consume_batch_queue(client->queue, timeout, messages, 1);
            if (count <= 0) return 0;
        }
        if (add_messages(batch, messages, count)) return -1;
        done += (size_t)count;
    }
    return 0;
}

static void free_batch(batch_t *batch) {
    topic_t *topics = (topic_t *)batch->topics.data;
    for (size_t at = 0; at < batch->topic_count; at++) free(topics[at].name);
    free(batch->bytes.data);
    free(batch->rows.data);
    free(batch->failures.data);
    free(batch->topics.data);
}

/* ---------------------------------------------------------------- a batch as Python objects */

static PyObject *bytes_of(const batch_t *batch, span_t span) {
    if (span.length < 0) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    return PyBytes_FromStringAndSize(span.length ? batch->bytes.data + span.at : "", (Py_ssize_t)span.length);
}

static PyObject *text_of(const batch_t *batch, span_t span) {
    if (span.length < 0) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    return PyUnicode_DecodeUTF8(span.length ? batch->bytes.data + span.at : "", (Py_ssize_t)span.length, "replace");
}

/* Return (topic, partitions, offsets, timestamps, values, keys, headers) of the rows of one topic. */
static PyObject *build_topic(const batch_t *batch, uint32_t number) {
    const topic_t *topic = (const topic_t *)batch->topics.data + number;
    const row_t *rows = (const row_t *)batch->rows.data;
    Py_ssize_t count = topic->rows;
    PyObject *partitions = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int32_t));
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    PyObject *times = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    PyObject *values = PyList_New(count), *keys = PyList_New(count);
    PyObject *headers = topic->headers ? PyList_New(count) : Py_None;
    if (headers == Py_None) Py_INCREF(Py_None);
    if (!partitions || !offsets || !times || !values || !keys || !headers) goto failed;
    char *partition = PyBytes_AsString(partitions), *offset = PyBytes_AsString(offsets), *time = PyBytes_AsString(times);
    Py_ssize_t at = 0;
    for (size_t each = 0; each < batch->row_count; each++) {
        const row_t *row = rows + each;
        if (row->topic != number) continue;
        memcpy(partition + at * (Py_ssize_t)sizeof(int32_t), &row->partition, sizeof(int32_t));
        memcpy(offset + at * (Py_ssize_t)sizeof(int64_t), &row->offset, sizeof(int64_t));
        memcpy(time + at * (Py_ssize_t)sizeof(int64_t), &row->timestamp, sizeof(int64_t));
        PyObject *value = bytes_of(batch, row->value), *key = bytes_of(batch, row->key);
        PyObject *packed = topic->headers ? bytes_of(batch, row->headers) : NULL;
        if (!value || !key || (topic->headers && !packed)) {
            Py_XDECREF(value);
            Py_XDECREF(key);
            Py_XDECREF(packed);
            goto failed;
        }
        PyList_SetItem(values, at, value);
        PyList_SetItem(keys, at, key);
        if (packed) PyList_SetItem(headers, at, packed);
        at++;
    }
    return Py_BuildValue("(sNNNNNN)", topic->name, partitions, offsets, times, values, keys, headers);
failed:
    Py_XDECREF(partitions);
    Py_XDECREF(offsets);
    Py_XDECREF(times);
    Py_XDECREF(values);
    Py_XDECREF(keys);
    Py_XDECREF(headers);
    return NULL;
}

static PyObject *build_failure(const batch_t *batch, const failure_t *failure) {
    PyObject *text = text_of(batch, failure->text), *topic = text_of(batch, failure->topic);
    if (!text || !topic) {
        Py_XDECREF(text);
        Py_XDECREF(topic);
        return NULL;
    }
    return Py_BuildValue("(iNNiL)", failure->code, text, topic, failure->partition, (long long)failure->offset);
}

static PyObject *build(const batch_t *batch) {
    PyObject *topics = PyList_New((Py_ssize_t)batch->topic_count);
    PyObject *failures = PyList_New((Py_ssize_t)batch->failure_count);
    if (!topics || !failures) goto failed;
    for (size_t at = 0; at < batch->topic_count; at++) {
        PyObject *topic = build_topic(batch, (uint32_t)at);
        if (!topic) goto failed;
        PyList_SetItem(topics, (Py_ssize_t)at, topic);
    }
    for (size_t at = 0; at < batch->failure_count; at++) {
        PyObject *failure = build_failure(batch, (const failure_t *)batch->failures.data + at);
        if (!failure) goto failed;
        PyList_SetItem(failures, (Py_ssize_t)at, failure);
    }
    return Py_BuildValue("(NN)", topics, failures);
failed:
    Py_XDECREF(topics);
    Py_XDECREF(failures);
    return NULL;
}

/* ---------------------------------------------------------------- the type Queue */

typedef struct {
    PyObject_HEAD
    client_t *client;
} queue_object;

static PyObject *queue_type;

static PyObject *raise_closed(void) {
    PyErr_SetString(PyExc_RuntimeError, "the client is closed");
    return NULL;
}

static PyObject *queue_forward(PyObject *self, PyObject *arguments) {
    const char *topic;
    int partition, added = 0, open = 0;
    if (!PyArg_ParseTuple(arguments, "si", &topic, &partition)) return NULL;
    char *name = strdup(topic);
    if (!name) return PyErr_NoMemory();
    client_t *client = ((queue_object *)self)->client;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&client->lock);
    open = client->queue != NULL;
    if (open && client->count == client->room) {
        size_t room = client->room ? 2 * client->room : 16;
        place_t *places = realloc(client->places, room * sizeof *places);
        if (places) {
            client->places = places;
            client->room = room;
        }
    }
    if (open && client->count < client->room) {
        client->places[client->count] = (place_t){name, partition};
        forward_place(client, client->places + client->count++);
        added = 1;
    }
    pthread_mutex_unlock(&client->lock);
    Py_END_ALLOW_THREADS
    if (!added) {
        free(name);
        return open ? PyErr_NoMemory() : raise_closed();
    }
    Py_RETURN_NONE;
}

static PyObject *queue_forget(PyObject *self, PyObject *arguments) {
    const char *topic;
    int partition;
    if (!PyArg_ParseTuple(arguments, "si", &topic, &partition)) return NULL;
    client_t *client = ((queue_object *)self)->client;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&client->lock);
    for (size_t at = 0; at < client->count; at++) {
        if (client->places[at].partition == partition && !strcmp(client->places[at].topic, topic)) {
            free(client->places[at].topic);
            client->places[at] = client->places[--client->count];
            break;
        }
    }
    pthread_mutex_unlock(&client->lock);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *queue_consume(PyObject *self, PyObject *arguments) {
    Py_ssize_t most;
    int timeout, failed = 0, open = 0;
    if (!PyArg_ParseTuple(arguments, "ni", &most, &timeout)) return NULL;
    if (most < 1) {
        PyErr_SetString(PyExc_ValueError, "at least one record must be asked for");
        return NULL;
    }
    client_t *client = ((queue_object *)self)->client;
    batch_t batch = {0};
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&client->lock);
    open = client->queue != NULL;
    if (open) failed = fill(client, &batch, (size_t)most, timeout);
    /* A partition that was unassigned and assigned again would stall: librdkafka has ended its forwarding, and does not
     * forward it by itself. So all are forwarded again when the queue is empty; what has waited there is moved along. */
    if (open && !failed && batch.row_count < (size_t)most)
        for (size_t at = 0; at < client->count; at++) forward_place(client, client->places + at);
    pthread_mutex_unlock(&client->lock);
    Py_END_ALLOW_THREADS
    PyObject *result = !open ? raise_closed() : failed ? PyErr_NoMemory() : build(&batch);
    free_batch(&batch);
    return result;
}

static PyObject *queue_close(PyObject *self, PyObject *nothing) {
    (void)nothing;
    client_t *client = ((queue_object *)self)->client;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&client->lock);
    close_queue(client);
    pthread_mutex_unlock(&client->lock);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static void queue_dealloc(PyObject *self) {
    client_t *client = ((queue_object *)self)->client;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&client->lock);
    close_queue(client);
    pthread_mutex_unlock(&client->lock);
    release(client);
    Py_END_ALLOW_THREADS
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef queue_methods[] = {
    {"forward", queue_forward, METH_VARARGS, "forward(topic, partition): send a partition's records to this queue."},
    {"forget", queue_forget, METH_VARARGS, "forget(topic, partition): the partition is no longer assigned."},
    {"consume", queue_consume, METH_VARARGS,
     "consume(most, timeout in ms): return the batches by topic, and the errors in place of records."},
    {"close", queue_close, METH_NOARGS, "Destroy the queue. Call it before the client is closed."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_dealloc, queue_dealloc},
    {Py_tp_methods, queue_methods},
    {Py_tp_doc, "The queue of one client, to which its partitions are forwarded."},
    {0, NULL},
};

static PyType_Spec queue_spec = {
    "kafka_eos_native.Queue", sizeof(queue_object), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, queue_slots,
};

/* ---------------------------------------------------------------- rows of a batch, to be produced */

enum { ROWS = 2048 }; /* Rows that are passed to librdkafka without the GIL at once. */

typedef struct {
    const char *data; /* NULL: there is none. */
    Py_ssize_t length;
} view_t;

typedef struct {
    view_t value, key, prefix, suffix;
    int64_t time, number;
    int32_t partition;
} output_t;

/* The columns of a batch: tuples of the same length. Where there is one suffix for all rows, suffixes is NULL. */
typedef struct {
    PyObject *values, *keys, *times, *partitions, *prefixes, *numbers, *suffixes;
    view_t suffix;
} columns_t;

/* Return 0 for what is neither None nor bytes nor a text in UTF-8. The view is valid as long as the object. */
static int view_of(PyObject *object, view_t *view) {
    *view = (view_t){NULL, 0};
    if (object == Py_None) return 1;
    if (PyBytes_Check(object)) {
        *view = (view_t){PyBytes_AsString(object), PyBytes_Size(object)};
    } else if (PyUnicode_Check(object)) {
        view->data = PyUnicode_AsUTF8AndSize(object, &view->length);
        if (!view->data) PyErr_Clear();
    }
    return view->data != NULL;
}

static int number_of(PyObject *object, int64_t *number) {
    if (!PyLong_Check(object)) return 0;
    *number = PyLong_AsLongLong(object);
    if (*number != -1 || !PyErr_Occurred()) return 1;
    PyErr_Clear();
    return 0;
}

/* Return 0 if confluent_kafka has to decide about the row: it raises the error, or knows the type. */
static int read_row(const columns_t *columns, Py_ssize_t at, output_t *row) {
    int64_t partition = -1;
    if (!view_of(PyTuple_GetItem(columns->values, at), &row->value)) return 0;
    if (!view_of(PyTuple_GetItem(columns->keys, at), &row->key)) return 0;
    if (!number_of(PyTuple_GetItem(columns->times, at), &row->time)) return 0;
    if (columns->partitions && !number_of(PyTuple_GetItem(columns->partitions, at), &partition)) return 0;
    if (partition != (int32_t)partition) return 0;
    row->partition = (int32_t)partition;
    if (!columns->prefixes) return 1;
    if (!view_of(PyTuple_GetItem(columns->prefixes, at), &row->prefix) || !row->prefix.data) return 0;
    if (!number_of(PyTuple_GetItem(columns->numbers, at), &row->number)) return 0;
    row->suffix = columns->suffix;
    if (!columns->suffixes) return 1;
    return view_of(PyTuple_GetItem(columns->suffixes, at), &row->suffix) && row->suffix.data;
}

/* Write prefix, number and suffix. Return their length, or -1 without memory. */
static Py_ssize_t write_header(buffer_t *buffer, const output_t *row) {
    char digits[20];
    size_t count = 0;
    uint64_t left = row->number < 0 ? -(uint64_t)row->number : (uint64_t)row->number;
    do digits[count++] = (char)('0' + left % 10);
    while (left /= 10);
    buffer->used = 0;
    char *place = reserve(buffer, (size_t)row->prefix.length + 1 + count + (size_t)row->suffix.length);
    if (!place) return -1;
    memcpy(place, row->prefix.data, (size_t)row->prefix.length);
    place += row->prefix.length;
    if (row->number < 0) *place++ = '-';
    while (count) *place++ = digits[--count];
    memcpy(place, row->suffix.data, (size_t)row->suffix.length);
    return place + row->suffix.length - buffer->data;
}

/* Pass rows to librdkafka, without the GIL and without a lock. Return how many it has accepted, from the first on. */
static Py_ssize_t produce(rd_kafka_t *handle, const char *topic, const char *header, const output_t *rows,
                          Py_ssize_t count, buffer_t *buffer) {
    rd_kafka_topic_t *to = rk.topic_new(handle, topic, NULL);
    if (!to) return 0;
    Py_ssize_t at = 0;
    producing = 1;
    for (int error = 0; at < count; at++) {
        const output_t *row = rows + at;
        if (header) {
            Py_ssize_t length = write_header(buffer, row);
            if (length < 0) break;
            error = rk.producev(handle, V_MSGFLAGS, MSG_F_COPY, V_RKT, to, V_PARTITION, row->partition, V_KEY,
                                row->key.data, (size_t)row->key.length, V_VALUE, row->value.data,
                                (size_t)row->value.length, V_TIMESTAMP, row->time, V_HEADER, header, buffer->data,
                                (ssize_t)length, V_END);
        } else {
            error = rk.producev(handle, V_MSGFLAGS, MSG_F_COPY, V_RKT, to, V_PARTITION, row->partition, V_KEY,
                                row->key.data, (size_t)row->key.length, V_VALUE, row->value.data,
                                (size_t)row->value.length, V_TIMESTAMP, row->time, V_END);
        }
        if (error) break;
    }
    producing = 0;
    rk.topic_destroy(to);
    return at;
}

/* ---------------------------------------------------------------- the type Sender */

typedef struct {
    PyObject_HEAD
    client_t *client;
} sender_object;

static PyObject *sender_type;

/* Return a column of the rows up to stop; NULL with an error if it is none. */
static PyObject *column(PyObject *object, Py_ssize_t stop) {
    if (PyTuple_Check(object) && PyTuple_Size(object) >= stop) return object;
    PyErr_SetString(PyExc_TypeError, "a column is a tuple with an item for each row");
    return NULL;
}

static int read_columns(columns_t *columns, PyObject *partitions, PyObject *prefixes, PyObject *numbers,
                        PyObject *suffixes, Py_ssize_t stop) {
    if (!column(columns->values, stop) || !column(columns->keys, stop) || !column(columns->times, stop)) return -1;
    if (partitions != Py_None && !(columns->partitions = column(partitions, stop))) return -1;
    if (prefixes == Py_None) return 0;
    if (!(columns->prefixes = column(prefixes, stop)) || !(columns->numbers = column(numbers, stop))) return -1;
    if (PyUnicode_Check(suffixes)) {
        columns->suffix.data = PyUnicode_AsUTF8AndSize(suffixes, &columns->suffix.length);
        return columns->suffix.data ? 0 : -1;
    }
    columns->suffixes = column(suffixes, stop);
    return columns->suffixes ? 0 : -1;
}

static PyObject *sender_produce(PyObject *self, PyObject *arguments) {
    const char *topic, *header;
    PyObject *partitions, *prefixes, *numbers, *suffixes;
    Py_ssize_t start, stop;
    columns_t columns = {0};
    if (!PyArg_ParseTuple(arguments, "sOOOOzOOOnn", &topic, &columns.values, &columns.keys, &columns.times, &partitions,
                          &header, &prefixes, &numbers, &suffixes, &start, &stop))
        return NULL;
    if (read_columns(&columns, partitions, prefixes, numbers, suffixes, stop)) return NULL;
    if (start < 0 || !header != !columns.prefixes) {
        PyErr_SetString(PyExc_ValueError, "rows begin at 0, and a header has a name and a value");
        return NULL;
    }
    client_t *client = ((sender_object *)self)->client;
    output_t *rows = start < stop ? malloc(sizeof *rows * (size_t)(stop - start < ROWS ? stop - start : ROWS)) : NULL;
    if (start < stop && !rows) return PyErr_NoMemory();
    buffer_t buffer = {0};
    rd_kafka_t *handle = NULL;
    int open = 1, whole = 1;
    while (open && whole && start < stop) {
        Py_ssize_t count = 0;
        while (count < ROWS && start + count < stop && read_row(&columns, start + count, rows + count)) count++;
        whole = count == ROWS || start + count == stop;
        Py_BEGIN_ALLOW_THREADS
        pthread_mutex_lock(&client->lock);
        handle = client->handle;
        if (handle) client->calls++;
        pthread_mutex_unlock(&client->lock);
        open = handle != NULL;
        if (open) {
            Py_ssize_t accepted = produce(handle, topic, header, rows, count, &buffer);
            whole = whole && accepted == count;
            start += accepted;
            pthread_mutex_lock(&client->lock);
            if (!--client->calls) pthread_cond_broadcast(&client->unused);
            pthread_mutex_unlock(&client->lock);
        }
        Py_END_ALLOW_THREADS
    }
    free(rows);
    free(buffer.data);
    return open ? PyLong_FromSsize_t(start) : raise_closed();
}

static PyObject *sender_failures(PyObject *self, PyObject *nothing) {
    (void)nothing;
    client_t *client = ((sender_object *)self)->client;
    pthread_mutex_lock(&clients_lock);
    size_t count = client->loss_count;
    loss_t *losses = count ? malloc(count * sizeof *losses) : NULL;
    int failed = client->unnoted || (count && !losses);
    if (losses) memcpy(losses, client->losses, count * sizeof *losses);
    pthread_mutex_unlock(&clients_lock);
    PyObject *found = failed ? PyErr_NoMemory() : PyList_New(0);
    for (size_t at = 0; found && at < count; at++) { /* The names stay as long as the client. */
        PyObject *loss = Py_BuildValue("(si)", losses[at].topic, losses[at].code);
        if (!loss || PyList_Append(found, loss)) Py_CLEAR(found);
        Py_XDECREF(loss);
    }
    free(losses);
    return found;
}

static void sender_dealloc(PyObject *self) {
    client_t *client = ((sender_object *)self)->client;
    Py_BEGIN_ALLOW_THREADS
    release(client);
    Py_END_ALLOW_THREADS
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef sender_methods[] = {
    {"produce", sender_produce, METH_VARARGS,
     "produce(topic, values, keys, times, partitions, header, prefixes, numbers, suffixes, start, stop): pass rows to "
     "the producer, in order; return the first that was not accepted, or stop. Columns are tuples, suffixes may be one "
     "text; partitions, or header with its parts, may be None."},
    {"failures", sender_failures, METH_NOARGS,
     "failures(): return topic and error code of the failed deliveries of rows that were produced here, each once."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot sender_slots[] = {
    {Py_tp_dealloc, sender_dealloc},
    {Py_tp_methods, sender_methods},
    {Py_tp_doc, "Passes batches of rows to one producer."},
    {0, NULL},
};

static PyType_Spec sender_spec = {
    "kafka_eos_native.Sender", sizeof(sender_object), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, sender_slots,
};

/* ---------------------------------------------------------------- the module */

static PyObject *load(PyObject *module, PyObject *arguments) {
    (void)module;
    const char *path;
    if (!PyArg_ParseTuple(arguments, "s", &path)) return NULL;
    if (!library) {
        void *found = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        if (!found) {
            const char *reason = dlerror();
            PyErr_Format(PyExc_ImportError, "%s is not loaded: %s", path, reason ? reason : "no reason is known");
            return NULL;
        }
#define FIND(result, name, arguments)                                                                                  \
    *(void **)&rk.name = dlsym(found, "rd_kafka_" #name);                                                              \
    if (!rk.name) {                                                                                                    \
        dlclose(found);                                                                                                \
        PyErr_Format(PyExc_ImportError, "rd_kafka_" #name " is not in %s", path);                                      \
        return NULL;                                                                                                   \
    }
        FUNCTIONS(FIND)
#undef FIND
        library = found;
    }
    return PyLong_FromLong(rk.version());
}

static PyObject *features(PyObject *module, PyObject *nothing) {
    (void)module, (void)nothing;
    if (!library) {
        PyErr_SetString(PyExc_RuntimeError, "librdkafka is not loaded");
        return NULL;
    }
    char text[1024];
    size_t size = sizeof text;
    rd_kafka_conf_t *conf = rk.conf_new();
    int result = rk.conf_get(conf, "builtin.features", text, &size);
    rk.conf_destroy(conf);
    return PyUnicode_FromString(result == CONF_OK ? text : "");
}

static PyObject *take_queue(PyObject *module, PyObject *nothing) {
    (void)module, (void)nothing;
    client_t *client = newest;
    if (!client) Py_RETURN_NONE;
    queue_object *queue = PyObject_New(queue_object, (PyTypeObject *)queue_type);
    if (!queue) return NULL;
    newest = NULL;
    queue->client = client;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&client->lock);
    if (client->handle) client->queue = rk.queue_new(client->handle);
    pthread_mutex_unlock(&client->lock);
    Py_END_ALLOW_THREADS
    return (PyObject *)queue;
}

static PyObject *take_sender(PyObject *module, PyObject *nothing) {
    (void)module, (void)nothing;
    if (!newest) Py_RETURN_NONE;
    sender_object *sender = PyObject_New(sender_object, (PyTypeObject *)sender_type);
    if (!sender) return NULL;
    sender->client = newest;
    newest = NULL;
    return (PyObject *)sender;
}

/* Return the next length in packed headers, and advance past it. */
static int32_t next_length(const char **place) {
    int32_t length;
    memcpy(&length, *place, sizeof length);
    *place += sizeof length;
    return length;
}

static PyObject *unpack_headers(PyObject *module, PyObject *arguments) {
    (void)module;
    const char *place;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "y#", &place, &size)) return NULL;
    const char *end = place + size;
    PyObject *found = PyList_New(0);
    while (found && place < end) {
        int32_t name_length = end - place < 4 ? -1 : next_length(&place);
        if (name_length < 0 || end - place - 4 < name_length) goto damaged;
        const char *name = place;
        place += name_length;
        int32_t value_length = next_length(&place);
        if (value_length < -1 || end - place < value_length) goto damaged;
        PyObject *header = Py_BuildValue("(s#y#)", name, (Py_ssize_t)name_length, value_length < 0 ? NULL : place,
                                         (Py_ssize_t)value_length);
        if (value_length > 0) place += value_length;
        int failed = !header || PyList_Append(found, header);
        Py_XDECREF(header);
        if (failed) {
            Py_DECREF(found);
            return NULL;
        }
    }
    return found;
damaged:
    Py_DECREF(found);
    PyErr_SetString(PyExc_ValueError, "these are no packed headers");
    return NULL;
}

static PyMethodDef functions[] = {
    {"load", load, METH_VARARGS, "load(path): use the librdkafka of a loaded library; return librdkafka's version."},
    {"features", features, METH_NOARGS, "Return librdkafka's builtin.features."},
    {"take_queue", take_queue, METH_NOARGS,
     "Return the queue of the consumer that this thread has just created; None without one."},
    {"take_sender", take_sender, METH_NOARGS,
     "Return the sender of the producer that this thread has just created; None without one."},
    {"unpack_headers", unpack_headers, METH_VARARGS, "unpack_headers(packed): return a list of names and values."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kafka_eos_native", "Batches of Kafka records for kafka_eos.", -1, functions,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_kafka_eos_native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    queue_type = PyType_FromSpec(&queue_spec);
    sender_type = PyType_FromSpec(&sender_spec);
    if (!queue_type || PyModule_AddObjectRef(module, "Queue", queue_type) || !sender_type ||
        PyModule_AddObjectRef(module, "Sender", sender_type) || PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
