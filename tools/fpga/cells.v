// Models of an ECP5's memories and multiplier, as the netlists of `make fpga` use them.

// TRELLIS_DPR16X4: 16 words of 4 bits. Asynchronous read.
module lut_ram(input clk, input write, input [3:0] write_address, input [3:0] write_data,
               input [3:0] read_address, output [3:0] read_data);
  parameter [63:0] INIT = 64'h0;
  reg [3:0] words [0:15];
  integer i;
  initial for (i = 0; i < 16; i = i + 1) words[i] = INIT[4 * i +: 4];
  always @(posedge clk) if (write) words[write_address] <= write_data;
  assign read_data = words[read_address];
endmodule

// MULT18X18D without registers.
module multiplier(input [17:0] a, input [17:0] b, input signed_a, input signed_b,
                  output [35:0] product);
  wire [35:0] wide_a = {{18{signed_a & a[17]}}, a};
  wire [35:0] wide_b = {{18{signed_b & b[17]}}, b};
  assign product = wide_a * wide_b;
endmodule

// DP16KD without output registers, with one port to write and one to read, both of WIDTH bits.
// The low bits of an address select nothing, or enable the write of 9 bits each. In the cycle of a
// write to the same address, a read returns garbage: here, the complement of the old word.
module block_ram(input clk, input write, input [13:0] write_address, input [35:0] write_data,
                 input read, input [13:0] read_address, output reg [35:0] read_data);
  parameter WIDTH = 18;
  parameter LOW = 4;  // number of low bits of an address that do not select a word
  parameter [18431:0] INIT = 18432'h0;
  localparam DEPTH = 16384 >> LOW;
  localparam GROUP = WIDTH < 18 ? WIDTH : 9;
  localparam GROUPS = WIDTH / GROUP;
  reg [WIDTH-1:0] words [0:DEPTH-1];
  integer i;
  initial begin
    for (i = 0; i < DEPTH; i = i + 1) words[i] = INIT[WIDTH * i +: WIDTH];
    read_data = 36'h0;
  end
  wire [GROUPS-1:0] enables = GROUPS == 1 ? {GROUPS{1'b1}} : write_address[GROUPS-1:0];
  wire [13-LOW:0] write_word = write_address[13:LOW];
  wire [13-LOW:0] read_word = read_address[13:LOW];
  always @(posedge clk) begin
    for (i = 0; i < GROUPS; i = i + 1)
      if (write && enables[i]) words[write_word][GROUP * i +: GROUP] <= write_data[GROUP * i +: GROUP];
    if (read)
      read_data[WIDTH-1:0] <=
        write && enables != 0 && write_word == read_word ? ~words[read_word] : words[read_word];
  end
endmodule
