// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A program that reads what comes to right0, and is slow for a planted reason:
 *
 *	SLEEP_US	it sleeps so long after each batch; 0: not at all
 *	COPIES		so often it copies 64 KiB for each packet
 *	COUNTS		it leaves packets to the kernel, and asks only how many came
 *	CPUS		meanwhile they come to these (RPS), as a mask; 0: as before
 *
 * It says what tcpdump and dumpcap say when they are ready, and at the end how many packets it got.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#ifndef SLEEP_US
#define SLEEP_US 0
#endif
#ifndef COPIES
#define COPIES 0
#endif
#ifndef COUNTS
#define COUNTS 0
#endif
#ifndef CPUS
#define CPUS 0
#endif

#define RPS "/sys/class/net/right0/queues/rx-0/rps_cpus"
#define BATCH 64
#define LARGE (64 << 10)

static volatile sig_atomic_t ended;
static char from[LARGE], to[LARGE], packets[BATCH][2048];

static void end(int signal)
{
	ended = signal;
}

/* Has packets come to these CPUs; says to which they came before. */
static unsigned int spread(unsigned int cpus)
{
	unsigned int before = 0;
	FILE *file = fopen(RPS, "r+");

	if (!file || fscanf(file, "%x", &before) != 1 || fseek(file, 0, SEEK_SET) ||
	    fprintf(file, "%x\n", cpus) < 0 || fclose(file)) {
		perror(RPS);
		exit(1);
	}
	return before;
}

int main(int count, char **arguments)
{
	struct sigaction action = { .sa_handler = end };
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };
	struct timeval limit = { .tv_usec = 100000 };
	struct iovec parts[BATCH];
	struct mmsghdr messages[BATCH] = { 0 };
	volatile size_t bytes = LARGE;
	struct tpacket_stats came;
	socklen_t size = sizeof(came);
	unsigned long long read = 0;
	unsigned int before = 0;
	int reader, i, n;

	if (count > 1 && !strcmp(arguments[1], "--version")) {
		puts("planted 1");
		return 0;
	}
	for (i = 0; i < BATCH; i++) {
		parts[i] = (struct iovec){ packets[i], sizeof(packets[i]) };
		messages[i].msg_hdr.msg_iov = &parts[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	sigaction(SIGINT, &action, NULL);
	reader = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
	address.sll_ifindex = if_nametoindex("right0");
	if (setsockopt(reader, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) ||
	    bind(reader, (struct sockaddr *)&address, sizeof(address))) {
		perror("right0");
		return 1;
	}
	if (CPUS)
		before = spread(CPUS);
	fprintf(stderr, "listening on right0\nFile: none\n");
	while (COUNTS && !ended)
		usleep(100000);
	while (!ended) {
		n = recvmmsg(reader, messages, BATCH, MSG_WAITFORONE, NULL);
		if (n <= 0)
			continue;
		read += n;
		for (i = 0; i < n * COPIES; i++)
			memcpy(to, from, bytes);
		if (SLEEP_US)
			usleep(SLEEP_US);
	}
	if (CPUS)
		spread(before);
	if (COUNTS && !getsockopt(reader, SOL_PACKET, PACKET_STATISTICS, &came, &size))
		read = came.tp_packets;
	printf("Packets captured: %llu\n%llu packets captured\n", read, read);
	return 0;
}
