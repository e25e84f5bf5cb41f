/* A publisher of batches of KV events on libzmq, with the sockets and the options of
 * vLLM's ZmqEventPublisher (vllm/distributed/kv_events.py): a PUB that binds or
 * connects, and a ROUTER that binds.
 *
 *	publisher bind|connect PUB REPLAY
 *
 * It reads lines from standard input and ends when that does:
 *
 *	publish HEX	sends the payload under the next number, and keeps it
 *	lose HEX	numbers and keeps it, but sends it to nobody
 *	repeat N HEX	publishes it N times
 *
 * It says "ready" on standard output when both sockets are there, and after each line
 * how many batches there are. Requests for a replay are served between lines. */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { KEPT = 10000, LINE = 1 << 20, PAYLOAD = LINE / 2 };

static struct batch {
	uint64_t seq;
	size_t len;
	char *payload;
} kept[KEPT];
static uint64_t next;

static void check(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
		exit(1);
	}
}

static void number(uint64_t n, unsigned char out[8])
{
	for (int i = 7; i >= 0; i--, n >>= 8)
		out[i] = (unsigned char)n;
}

static void add(void *pub, const char *payload, size_t len)
{
	struct batch *b = &kept[next % KEPT];
	unsigned char seq[8];

	free(b->payload);
	b->payload = malloc(len ? len : 1);
	memcpy(b->payload, payload, len);
	b->len = len;
	b->seq = next++;
	if (!pub)
		return;
	number(b->seq, seq);
	check(zmq_send(pub, "kv-events", 9, ZMQ_SNDMORE) >= 0, "send the topic");
	check(zmq_send(pub, seq, 8, ZMQ_SNDMORE) >= 0, "send the number");
	check(zmq_send(pub, payload, len, 0) >= 0, "send the payload");
}

static void answer(void *router, const void *id, size_t idlen, uint64_t seq, const char *payload, size_t len)
{
	unsigned char number8[8];

	number(seq, number8);
	check(zmq_send(router, id, idlen, ZMQ_SNDMORE) >= 0, "send the identity");
	check(zmq_send(router, "", 0, ZMQ_SNDMORE) >= 0, "send the delimiter");
	check(zmq_send(router, number8, 8, ZMQ_SNDMORE) >= 0, "send the number");
	check(zmq_send(router, payload, len, 0) >= 0, "send the payload");
}

/* replay serves one request: identity, an empty frame, the first number wanted. */
static void replay(void *router)
{
	unsigned char frame[3][256];
	int len[3], frames = 0, more = 1;
	size_t size = sizeof more;
	uint64_t from = 0;

	for (; more; frames++) {
		unsigned char *into = frame[frames < 3 ? frames : 2];
		int n = zmq_recv(router, into, sizeof frame[0], 0);
		check(n >= 0, "receive a request");
		len[frames < 3 ? frames : 2] = n;
		check(zmq_getsockopt(router, ZMQ_RCVMORE, &more, &size) == 0, "ask for more");
	}
	if (frames != 3 || len[2] != 8)
		return;
	for (int i = 0; i < 8; i++)
		from = from << 8 | frame[2][i];
	for (uint64_t seq = next > KEPT ? next - KEPT : 0; seq < next; seq++)
		if (seq >= from)
			answer(router, frame[0], len[0], seq, kept[seq % KEPT].payload, kept[seq % KEPT].len);
	answer(router, frame[0], len[0], UINT64_MAX, "", 0);
}

static size_t unhex(const char *hex, char *out)
{
	size_t n = 0;
	unsigned byte;

	while (n < PAYLOAD && sscanf(hex + 2 * n, "%2x", &byte) == 1)
		out[n++] = (char)byte;
	return n;
}

int main(int argc, char **argv)
{
	static char line[LINE], payload[PAYLOAD];
	int hwm = 100000;
	void *context = zmq_ctx_new(), *pub = zmq_socket(context, ZMQ_PUB), *router = zmq_socket(context, ZMQ_ROUTER);

	if (argc != 4)
		return 2;
	check(pub && router, "open sockets");
	check(zmq_setsockopt(pub, ZMQ_SNDHWM, &hwm, sizeof hwm) == 0, "set the high-water mark");
	if (strcmp(argv[1], "bind") == 0)
		check(zmq_bind(pub, argv[2]) == 0, argv[2]);
	else
		check(zmq_connect(pub, argv[2]) == 0, argv[2]);
	check(zmq_bind(router, argv[3]) == 0, argv[3]);
	setvbuf(stdin, NULL, _IONBF, 0); /* or lines are read that poll does not tell of */
	puts("ready");
	for (;;) {
		zmq_pollitem_t items[] = { { router, 0, ZMQ_POLLIN, 0 }, { NULL, 0, ZMQ_POLLIN, 0 } };

		fflush(stdout);
		check(zmq_poll(items, 2, -1) > 0, "poll");
		if (items[0].revents)
			replay(router);
		if (!items[1].revents)
			continue;
		if (!fgets(line, sizeof line, stdin))
			return 0;
		unsigned long times = 1;
		char what[16] = "";
		int at = 0;
		if (sscanf(line, "repeat %lu %n", &times, &at) < 1)
			sscanf(line, "%15s %n", what, &at);
		size_t len = unhex(line + at, payload);
		for (; times; times--)
			add(strcmp(what, "lose") ? pub : NULL, payload, len);
		printf("%llu\n", (unsigned long long)next);
	}
}
