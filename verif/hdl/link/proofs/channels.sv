// Packets of two sources onto two channels: each channel carries one packet at a time. A source
// keeps its channel from the offer of a packet's first flit to the tail.
module proof (
    input clk,
    input [1:0] valid, onto, room,
    input [20:0] flit_0, flit_1,
    output good
);
    reg [1:0] bound = 0, channels = 0;  // sources with a packet, and the channel of it
    reg [1:0] inside = 0, owners = 0;   // channels with a packet, and the source of it
    wire [1:0] goes = bound & channels | ~bound & onto;
    wire [1:0] ready, offer, holder_0, holder_1;
    wire send, channel;
    wire [20:0] flit;

    mux mux (
        .clk(clk), .rst(1'b0), .source__0__valid(valid[0]), .source__1__valid(valid[1]),
        .source__0__payload(flit_0), .source__1__payload(flit_1), .onto__0(goes[0]),
        .onto__1(goes[1]), .room(room), .source__0__ready(ready[0]), .source__1__ready(ready[1]),
        .offer(offer), .send(send), .channel(channel), .flit(flit),
        .holder_0(holder_0), .holder_1(holder_1));

    // Sources that may leave on each channel: its holder, or all that want it while it is free.
    wire [1:0] wants_0 = valid & ~goes & (holder_0 == 0 ? 2'b11 : holder_0);
    wire [1:0] wants_1 = valid & goes & (holder_1 == 0 ? 2'b11 : holder_1);
    wire owner = ready[1];
    always @(posedge clk) begin
        bound <= (bound | valid) & ~(ready & {2{flit[8]}});
        channels <= goes;
        if (send) begin
            inside[channel] <= ~flit[8];
            owners[channel] <= owner;
        end
    end

    assign good =
        // What is sent is the flit of one source, on its channel, which has room.
        (send ? (ready == 2'b01 | ready == 2'b10) & (ready & ~valid) == 0
                & flit == (owner ? flit_1 : flit_0) & goes[owner] == channel & room[channel]
              : ready == 0)
        // No other packet is inside a packet.
        & (~(send & inside[channel]) | owners[channel] == owner)
        // A flit that can leave does not wait, and each channel that is wanted is offered.
        & (send | (offer & room) == 0) & offer == {wants_1 != 0, wants_0 != 0}
        // Invariants.
        & (holder_0 & holder_1) == 0 & holder_0 != 3 & holder_1 != 3
        & (holder_0 & ~(bound & ~channels)) == 0 & (holder_1 & ~(bound & channels)) == 0
        & (~inside[0] | holder_0 == (owners[0] ? 2 : 1))
        & (~inside[1] | holder_1 == (owners[1] ? 2 : 1));
endmodule
